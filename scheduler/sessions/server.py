"""The sockets: one UNIX stream socket per container, many connections each.

Who is speaking is known from outside the payload: the container by the socket that was connected to, the process by
the kernel (SO_PEERCRED, and a pidfd, which a recycled pid cannot deceive). One connection's bad manners close that
connection and nothing else. Everything here is non-blocking, with small fixed buffers.

`Server` knows no memory: what a message means is the `Handler`'s business (broker.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import shutil
import socket
import struct
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scheduler.sessions.wire import FRAME_SIZE, Frame, Reader, Type, WireError, pack
from shim.binding import EXHAUSTED

log = logging.getLogger(__name__)

SOCKET_NAME = "gpushare.sock"
LOOK_SECONDS = 1.0  # how long a socket's folder may be gone
RESERVE = 512  # descriptors kept for engine, database, and what is connected already; of few, a quarter
PAUSE_SECONDS = 0.1  # in which nobody is accepted when there are too few
READ_SIZE = 64 * FRAME_SIZE  # one turn of one connection; then it is the others' turn
UNSENT_LIMIT = 4096  # frames; a process that reads nothing for so long is broken
BACKLOG = 1024
ACCEPTS_A_TURN = 64
CONNECTIONS_LIMIT = 4096  # a container; beyond that it would use up the descriptors of its neighbours
HELLO_SECONDS = 30.0
SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket module yet


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel tells it. `pidfd` belongs to the connection."""

    pid: int
    uid: int
    pidfd: int


class Handler(Protocol):
    """What the server tells. Every call is synchronous: a message is dealt with before the next is read."""

    def hello(self, connection: Connection, frame: Frame, page: int | None) -> None:
        """The first message. `page` is the file descriptor of a handed-back lease page; the server closes it."""

    def message(self, connection: Connection, frame: Frame) -> None: ...

    def closed(self, connection: Connection, unsent: list[Frame]) -> None:
        """The connection has ended. `unsent`: what the process has never been told."""


class Connection:
    """One connected process. `hold()` keeps its messages unread until `go_on()`."""

    def __init__(self, server: Server, container: str, sock: socket.socket, peer: Peer) -> None:
        self.container = container
        self.peer = peer
        self.open = True
        self._server = server
        self._socket = sock
        self._reader = Reader()
        self._frames: deque[Frame] = deque()
        self._greeted = False
        self._held = False
        self._unsent: deque[Frame] = deque()
        self._cut = 0  # how much of the first unsent frame has gone
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)
        self._impatience = self._loop.call_later(HELLO_SECONDS, self.close, "it did not say HELLO")

    def _readable(self) -> None:
        descriptors: list[int] = []
        try:
            data, descriptors = self._receive()
            if not data:
                return self.close()
            self._frames.extend(self._reader.feed(data))
            self._deal(descriptors)
        except BlockingIOError:
            pass
        except ConnectionError:
            self.close()
        except WireError as error:
            self.close(str(error))
        except Exception as error:
            self._failed(error)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _failed(self, error: Exception) -> None:
        """The process connects again, and again; so what is told of it is bounded."""
        short = isinstance(error, OSError) and error.errno in EXHAUSTED
        self._server.complain(self.container, f"process {self.peer.pid}: {error!r}", None if short else error)
        self.close()

    def _receive(self) -> tuple[bytes, list[int]]:
        data, ancillary, flags, _ = self._socket.recvmsg(
            READ_SIZE, socket.CMSG_SPACE(2 * 4), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
        )
        descriptors: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += struct.unpack(f"{len(payload) // 4}i", payload[: len(payload) // 4 * 4])
        if len(descriptors) > 1 or flags & socket.MSG_CTRUNC or (descriptors and self._greeted):
            for descriptor in descriptors:
                os.close(descriptor)
            raise WireError("file descriptors where none belong")
        return data, descriptors

    def _deal(self, descriptors: list[int]) -> None:
        while self._frames and self.open and not self._held:
            frame = self._frames.popleft()
            if (frame.type == Type.HELLO) is self._greeted:
                raise WireError("HELLO is to be said once, and first")
            if frame.type == Type.HELLO:
                self._greeted = True
                self._impatience.cancel()
                self._server.handler.hello(self, frame, descriptors[0] if descriptors else None)
            else:
                self._server.handler.message(self, frame)

    def hold(self) -> None:
        """Reads nothing more for now."""
        if self.open and not self._held:
            self._held = True
            self._loop.remove_reader(self._socket)

    def go_on(self) -> None:
        if self.open and self._held:
            self._held = False
            self._loop.add_reader(self._socket, self._readable)
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        try:
            self._deal([])
        except WireError as error:
            self.close(str(error))
        except Exception as error:
            self._failed(error)

    def send(self, frame: Frame, page: int | None = None) -> None:
        """Sends now what goes now and keeps the rest; what never goes is reported to `Handler.closed`."""
        self._unsent.append(frame)
        if len(self._unsent) > 1:
            if len(self._unsent) > UNSENT_LIMIT:
                self._loop.call_soon(self.close, "it does not read its answers")
            return
        rights = [] if page is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", page))]
        self._flush(rights)
        if self._unsent and self.open:
            self._loop.add_writer(self._socket, self._flush)

    def _flush(self, rights: list[tuple[int, int, bytes]] | None = None) -> None:
        data = b"".join(pack(frame) for frame in self._unsent)[self._cut :]
        try:
            sent = self._cut + self._socket.sendmsg([data], rights or [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            self._loop.remove_writer(self._socket)
            self._loop.call_soon(self.close)
            return
        for _ in range(sent // FRAME_SIZE):
            self._unsent.popleft()
        self._cut = sent % FRAME_SIZE
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def close(self, complaint: str = "") -> None:
        if not self.open:
            return
        self.open = False
        if complaint:
            self._server.complain(self.container, f"connection of process {self.peer.pid} closed: {complaint}")
        self._impatience.cancel()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        os.close(self.peer.pidfd)
        self._server.forget(self)
        # A frame of which only a part went counts as unsent: the process acts on whole ones only.
        self._server.handler.closed(self, list(self._unsent))


class Server:
    """All sockets of this host. `folder` is entered by nobody but the scheduler and the engine's mounts."""

    def __init__(self, folder: Path, handler: Handler) -> None:
        self.folder = folder
        self.handler = handler
        self._listeners: dict[str, socket.socket] = {}
        self._connections: dict[str, set[Connection]] = {}
        self._complaints: dict[str, int] = {}
        self._inodes: dict[str, int] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)

    def socket_dir(self, container: str) -> Path:
        return self.folder / container

    def connections(self, container: str) -> int:
        return len(self._connections.get(container, ()))

    def listen(self, container: str) -> Path:
        """Opens a container's socket, over that of an earlier scheduler if need be; returns its directory."""
        directory = self.socket_dir(container)
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
                listener.listen(BACKLOG)
                os.rename(new, path)
                self._inodes[container] = os.stat(path).st_ino
        except OSError:
            listener.close()
            raise
        self._stop_listening(container)
        self._listeners[container] = listener
        asyncio.get_running_loop().add_reader(listener, self._acceptable, container)
        return directory

    async def run(self) -> None:
        """Restores the socket's folder when somebody has removed it, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
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
        shutil.rmtree(self.socket_dir(container), ignore_errors=True)

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
            listener.close()

    def complain(self, container: str, text: str, error: Exception | None = None) -> None:
        """Into the log, more and more rarely: a program may do it a thousand times a second."""
        self._complaints[container] = number = self._complaints.get(container, 0) + 1
        if is_power_of_two(number):
            log.warning("container %s: %s (complaint %d)", container, text, number, exc_info=error)

    def forget(self, connection: Connection) -> None:
        connections = self._connections.get(connection.container, set())
        connections.discard(connection)
        if not connections:
            self._connections.pop(connection.container, None)

    def _acceptable(self, container: str) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                _keep_reserve()
                sock, _ = self._listeners[container].accept()
            except (BlockingIOError, KeyError):
                return
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._rest(container, error)
                    return
                continue  # that one went away again
            self._accept(container, sock)

    def _accept(self, container: str, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            if len(self._connections.get(container, ())) >= CONNECTIONS_LIMIT:
                raise OSError(errno.EUSERS, "too many connections from this container")
            peer = _peer(sock)
        except OSError as error:
            self.complain(container, f"connection not accepted: {error}")
            sock.close()
            return
        self._connections.setdefault(container, set()).add(Connection(self, container, sock, peer))

    def _rest(self, container: str, error: OSError) -> None:
        """Out of descriptors or memory: who connects waits in the backlog, instead of being refused."""
        self.complain(container, f"cannot accept connections: {error}")
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listeners[container])

        def again() -> None:
            if listener := self._listeners.get(container):
                loop.add_reader(listener, self._acceptable, container)

        loop.call_later(PAUSE_SECONDS, again)


def is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _keep_reserve() -> None:
    """Raises OSError (EMFILE) if one more connection would leave too few descriptors for everything else."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)  # the kernel gives the lowest number that is free
    os.close(lowest)
    if lowest >= limit - min(RESERVE, limit // 4):
        raise OSError(errno.EMFILE, "nearly all file descriptors are in use")


@contextmanager
def _short(directory: Path) -> Iterator[str]:
    """The socket's path in fewer than the 108 bytes that a UNIX address holds, however deep the directory is."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)


def _peer(sock: socket.socket) -> Peer:
    """Raises OSError if the process has gone already or is outside this PID namespace."""
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if pid <= 0:
        raise ProcessLookupError(errno.ESRCH, "its process is not in the scheduler's PID namespace")
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        os.set_inheritable(pidfd, False)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        pidfd = os.pidfd_open(pid)
    return Peer(pid, uid, pidfd)
