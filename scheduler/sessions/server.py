"""The sockets: one UNIX stream socket per container, many connections each (connection.py).

Who is speaking is known from outside the payload: the container by the socket that was connected to, the process by
the kernel (SO_PEERCRED, and a pidfd, which tells whether the pid is its own still). Everything here is non-blocking,
with small fixed buffers, and what one container may take of the fair_queue, connections and descriptors has a budget:
who connects beyond it waits in its own container's backlog.

`Server` knows no memory: what a message means is the `Handler`'s business (processes.py).
"""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import shutil
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduler import clock, proc
from scheduler.pace import Pace
from scheduler.sessions.closer import Closer
from scheduler.sessions.connection import Connection, Handler
from scheduler.sessions.fair_queue import FairQueue
from shim.binding import EXHAUSTED
from web.logs import ById
from web.spec.inside.reserved import SFTP

log = logging.getLogger(__name__)

SOCKET_NAME = "gpushare.sock"
LOOK_SECONDS = 1.0  # how long a socket's folder may be gone
PAUSE_SECONDS = 0.1  # in which nobody is accepted when there are too few
BACKLOG = 1024
CONNECTIONS = 1024  # of a container, and processes: a card has room for a few hundred CUDA contexts
CONNECTIONS_IN_ALL = 16384
CONNECTIONS_BEFORE_HELLO = 64  # of a container: a program says HELLO as soon as it is connected
CONNECTIONS_A_SECOND = 100  # of a container; each costs the loop half a millisecond
HELLO_SECONDS = 10  # a program that was stopped between connecting and HELLO connects again
RESERVED_DESCRIPTORS = 512  # for the engine, the database and what is connected already; of few, a quarter
EACH_TAKES = 4  # descriptors of a connected process: connection, page, and a pidfd for each of connection and session
MOST_CLOSING = 64  # descriptors of a container that wait to be closed; until then nobody else of it is let in
SO_PASSRIGHTS = 83  # Linux 6.16


class Server:
    """All sockets of this host. `folder` is entered by nobody but the scheduler and the engine's mounts."""

    def __init__(
        self,
        folder: Path,
        handler: Handler,
        clock: Callable[[], float] = clock.monotonic,
        sftp: Path | None = None,
    ) -> None:
        """`sftp`: a program of ours that lies beside each socket, for web/door/."""
        self.folder, self.handler, self._clock, self._sftp = folder, handler, clock, sftp
        self._listeners: dict[str, socket.socket] = {}
        self._connections: dict[str, set[Connection]] = {}
        self._complaints: dict[str, int] = {}
        self._inodes: dict[str, int] = {}
        self.refuses_descriptors = False  # the kernel lets our sockets pass none
        self._left: set[str] = set()  # those that are no more, and whose directory may be there
        self._resting: set[str] = set()  # containers from which nobody is let in just now
        self._arrivals: dict[str, Pace] = {}  # container → its connections a second
        self.fair_queue = FairQueue()
        self.closer = Closer()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)

    def socket_dir(self, container: str) -> Path:
        return self.folder / container

    def connections(self, container: str) -> int:
        return len(self._connections.get(container, ()))

    def listen(self, container: str) -> Path:
        """Opens a container's socket, over that of an earlier scheduler if need be; returns its directory."""
        directory = self.socket_dir(container)
        self._left.discard(container)
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory.chmod(0o755)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with _short(directory) as path:
                # Under its name there is a socket at every moment: without one, a program starting now would give up.
                new = f"{path}.new"
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new)
                listener.bind(new)
                os.chmod(new, 0o666)  # programs inside run as any user
                self.refuses_descriptors = _refuses_descriptors(listener)
                listener.listen(BACKLOG)
                os.rename(new, path)
                self._inodes[container] = os.stat(path).st_ino
        except OSError:
            listener.close()
            raise
        if self._sftp is not None:
            _put_beside(directory, self._sftp)
        self._stop_listening(container)
        self._listeners[container] = listener
        self._listen_again(container)
        return directory

    async def run(self) -> None:
        """Makes good what went wrong: a socket that somebody removed, what could not be closed. Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.closer.start()
            self._take_away()
            for container in [container for container in self._listeners if not self._is_there(container)]:
                self.complain(container, "its socket was removed; it is made again")
                try:
                    self.listen(container)
                except OSError as error:
                    self.complain(container, f"its socket cannot be made: {error}")

    def _is_there(self, container: str) -> bool:
        try:
            return os.stat(self.socket_dir(container) / SOCKET_NAME).st_ino == self._inodes[container]
        except OSError:
            return False

    def shut(self, container: str) -> None:
        """Closes a container's socket and connections and removes its directory."""
        self._stop_listening(container)
        for connection in list(self._connections.get(container, ())):
            connection.close()
        self._complaints.pop(container, None)
        self._inodes.pop(container, None)
        self._arrivals.pop(container, None)
        self.fair_queue.forget(container)
        self._left.add(container)
        self._take_away()

    def _take_away(self) -> None:
        """The directories of whom there is no more. One that does not go, as for want of descriptors, goes later."""
        for container in list(self._left):
            shutil.rmtree(self.socket_dir(container), ignore_errors=True)
            if not self.socket_dir(container).exists():
                self._left.discard(container)

    def clear(self, living: Collection[str]) -> None:
        """Removes the directories of all but these: a scheduler that was killed over an end may have left some."""
        for directory in self.folder.iterdir():
            if directory.name not in living:
                self.shut(directory.name)

    def close(self) -> None:
        """Closes everything and leaves the directories: the containers live on and will reconnect."""
        for container in list(self._listeners):
            self._stop_listening(container)
        for connections in list(self._connections.values()):
            for connection in list(connections):
                connection.close()

    def _stop_listening(self, container: str) -> None:
        if listener := self._listeners.pop(container, None):
            asyncio.get_running_loop().remove_reader(listener)
            self.closer.close(container, (listener.detach(),))  # with all that lies in its backlog

    def _close(self, container: str, sock: socket.socket) -> None:
        """At once for the other end; where it may hold descriptors that were passed, the rest a little later."""
        if self.refuses_descriptors:
            sock.close()  # no thread for it: a program may come and go as often as it likes
            return
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        self.closer.close(container, (sock.detach(),))

    def complain(self, container: str, text: str, error: Exception | None = None) -> None:
        """Into the log, more and more rarely: a program may do it a thousand times a second."""
        self._complaints[container] = number = self._complaints.get(container, 0) + 1
        if is_power_of_two(number):
            log.warning("container %s: %s (complaint %d)", ById(container), text, number, exc_info=error)

    def forget(self, connection: Connection, sock: socket.socket) -> None:
        """It is closed."""
        connections = self._connections.get(connection.container, set())
        connections.discard(connection)
        if not connections:
            self._connections.pop(connection.container, None)
        os.close(connection.peer.pidfd)
        self._close(connection.container, sock)

    # ---- who connects ----

    def _acceptable(self, container: str) -> None:
        if self.fair_queue.at_once(container, lambda: self._accept(container) and False):
            asyncio.get_running_loop().remove_reader(self._listeners[container])
            self.fair_queue.add(container, lambda: self._accept_in_turn(container))

    def _accept_in_turn(self, container: str) -> bool:
        more = self._accept(container)
        if not more:
            self._listen_again(container)
        return more

    def _listen_again(self, container: str) -> None:
        if (listener := self._listeners.get(container)) and container not in self._resting:
            asyncio.get_running_loop().add_reader(listener, self._acceptable, container)

    def _accept(self, container: str) -> bool:
        """Lets one in; whether there may be more."""
        listener = self._listeners.get(container)
        if listener is None:
            return False
        now = self._clock()
        arrivals = self._arrivals.get(container)
        if arrivals is None:
            # All that it may have at once may also come at once: after a restart of ours they do.
            arrivals = Pace(CONNECTIONS_A_SECOND, now, in_hand=CONNECTIONS)
            self._arrivals[container] = arrivals
        if pause := arrivals.pause(now):
            self._rest(container, pause)
            return False
        try:
            self._keep_room(container)
            sock, _ = listener.accept()
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in EXHAUSTED:
                return True  # that one went away again
            self.complain(container, f"cannot accept connections: {error}")
            self._rest(container, PAUSE_SECONDS)
            return False
        arrivals.take(now)
        sock.setblocking(False)
        try:
            peer = proc.peer(sock)
        except OSError as error:
            self.complain(container, f"connection not accepted: {error}")
            self._close(container, sock)
        else:
            connection = Connection(self, container, sock, peer, HELLO_SECONDS)
            self._connections.setdefault(container, set()).add(connection)
        return True

    def _keep_room(self, container: str) -> None:
        """Raises OSError (EMFILE) if one more of this container would leave too little for everybody else.

        Nobody may have more than what is then left for others: one who takes all that it can leaves half of it, two
        leave a third, and there is room for the next at any time.
        """
        mine = self._connections.get(container, ())
        room = self.room(sum(map(len, self._connections.values())))
        if len(mine) >= min(CONNECTIONS, room):
            raise OSError(errno.EMFILE, f"it has {len(mine)}, and there is room for {max(0, room)} more of everybody")
        if sum(not connection.greeted for connection in mine) >= CONNECTIONS_BEFORE_HELLO:
            raise OSError(errno.EMFILE, "too many that have not said HELLO")
        if self.closer.waiting(container) >= MOST_CLOSING:
            raise OSError(errno.EMFILE, "too many of it are being closed")

    def room(self, taken: int) -> int:
        """For so many more of everybody, who have `taken` of them together: connections, or processes."""
        free = _free_descriptors(RESERVED_DESCRIPTORS) // EACH_TAKES
        return min(CONNECTIONS_IN_ALL - taken, free)

    def _rest(self, container: str, pause: float) -> None:
        """Who connects waits in the backlog, instead of being refused."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listeners[container])
        self._resting.add(container)

        def again() -> None:
            self._resting.discard(container)
            self._listen_again(container)

        loop.call_later(pause, again)


def _put_beside(directory: Path, program: Path) -> None:
    """Its second name there, in place of that of an earlier release. Without it only sftp does not work."""
    new = directory / f"{SFTP}.new"
    try:
        new.unlink(missing_ok=True)
        os.link(program, new)
        os.rename(new, directory / SFTP)
        new.unlink(missing_ok=True)  # a rename between two names of one file does nothing
    except OSError as error:
        log.warning("there will be no sftp into %s: %s", directory.name, error)


def _refuses_descriptors(listener: socket.socket) -> bool:
    """Whether the kernel passes none through it. Where it cannot, they are received and closed (closer.py)."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)  # each connection inherits it
    except OSError:
        return False
    return True


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _free_descriptors(reserve: int) -> int:
    """Less the reserve, which is for what is connected already and for everything else."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)  # the kernel gives the lowest number that is free
    os.close(lowest)
    return limit - min(reserve, limit // 4) - lowest


@contextmanager
def _short(directory: Path) -> Iterator[str]:
    """The socket's path in fewer than the 108 bytes that a UNIX address holds, however deep the directory is."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)
