"""What the kernel tells of a process, by /proc or by a socket; nothing else in scheduler/ reads /proc/PID/…

Standard library only: keepers import it.

The first thread of a process may end (pthread_exit) while others go on. From then on the kernel shows the process as a
zombie: /proc/PID/fd, maps, map_files and cmdline are empty, environ, mountinfo and exe are errors, cgroup (version 1)
names another group. /proc/TID of a living thread has all of it. (/proc/PID/task/TID has no map_files.)
"""

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # that one cannot look says nothing of what is there
SO_PEERPIDFD = 77  # Linux 6.5; not in Python's socket module yet
TRIES = 8  # threads that are asked in turn, as each of them ends while it is asked
MOST_THREADS = 256  # looked at for one that lives; all that have ended but the first are gone from the list
LONGEST = 1 << 20  # bytes of a file, where the reader names no other limit


class Stat(NamedTuple):
    """A line of /proc/PID/stat. `started` is in clock ticks since boot: with the pid it names a process for good.

    `ticks` it has computed, `ended_ticks` those of its children that it has waited for; `pages` of it are in RAM.
    `stack` and `code` are where its program has them; 0: the reader may not know.
    """

    pid: int
    state: str
    parent: int
    session: int
    started: int
    threads: int
    ticks: int = 0
    ended_ticks: int = 0
    pages: int = 0
    stack: int = 0
    code: int = 0

    @property
    def living(self) -> bool:
        """A program whose first thread has ended may show as a zombie while its other threads run on."""
        return self.state not in "ZX" or self.threads > 1


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end, as the kernel tells it. `pidfd` belongs to the connection.

    `sure`: it is of who connected. Before Linux 6.5 it may be of who had the pid by then.
    """

    pid: int
    uid: int
    pidfd: int
    sure: bool = True

    def has_ended(self) -> bool:
        """Its connection may live on in another process, while its pid is somebody else's."""
        end = select.poll()
        end.register(self.pidfd, select.POLLIN)
        return bool(end.poll(0))


class Source:
    """What the kernel tells. A test's own tells of processes as it likes."""

    def stat(self, pid: int | str) -> Stat | None:
        found = _stat(f"/proc/{pid}/stat")
        if found is None or found.state not in "ZX" or found.threads == 1:
            return found
        thread = next(_others(found.pid), None)
        if thread is None:
            return found
        return found._replace(state=thread.state, pages=thread.pages, stack=thread.stack, code=thread.code)

    def peer(self, sock: socket.socket) -> Peer:
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if pid <= 0:
            raise ProcessLookupError(errno.ESRCH, "its process is not in the scheduler's PID namespace")
        try:
            pidfd = sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
            os.set_inheritable(pidfd, False)
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
            return Peer(pid, uid, os.pidfd_open(pid), sure=False)
        return Peer(pid, uid, pidfd)

    def pids(self) -> list[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]

    def pidfd(self, pid: int) -> int:
        return os.pidfd_open(pid)

    def folders(self, pid: int | str) -> Iterator[str]:
        for _ in range(TRIES):
            thread = _a_living(pid)
            if thread is None:
                return
            yield f"/proc/{thread}"
            asked = _stat(f"/proc/{pid}/task/{thread}/stat")
            if asked is not None and asked.state not in "ZX":
                return  # it lives: what it showed is so

    def owner(self, pid: int) -> int:
        return os.stat(f"/proc/{pid}").st_uid

    def processor_time(self, pid: int) -> float:
        try:
            return time.clock_gettime(~pid << 3 | 2)
        except OSError:  # it has ended
            return 0.0

    def threads(self, pid: int, most: int) -> list[str]:
        try:
            with os.scandir(f"/proc/{pid}/task") as found:
                return [each.path for each in islice(found, most)]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def states(self, pid: int, most: int) -> list[str]:
        return [found.state for folder in threads(pid, most) if (found := _stat(f"{folder}/stat"))]


_source = Source()


def use(source: Source) -> None:
    """Whatever is asked from now on, this one answers."""
    global _source
    _source = source


def stat(pid: int | str) -> Stat | None:
    """None if there is no such process. Its state and memory are those of a thread that lives, if any does."""
    return _source.stat(pid)


def peer(sock: socket.socket) -> Peer:
    """Who connected. Raises OSError if the process has gone already or is outside this PID namespace."""
    return _source.peer(sock)


def pids() -> list[int]:
    """Of all processes of this host."""
    return _source.pids()


def pidfd(pid: int) -> int:
    """A descriptor that is readable once the process has ended. Raises OSError; ProcessLookupError if it has."""
    return _source.pidfd(pid)


def folders(pid: int | str) -> Iterator[str]:
    """Where in /proc to look for this process. Take the next one if this one did not show what was looked for: there is
    one only if the thread that was asked has ended meanwhile."""
    return _source.folders(pid)


def read(pid: int | str, name: str, at_most: int = LONGEST) -> bytes:
    """Up to `at_most` bytes of /proc/PID/`name`. Raises OSError, ProcessLookupError if the process has ended."""
    content, failed = b"", ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/{name}")
    error: OSError | None = failed
    for folder in folders(pid):
        try:
            content, error = _read(f"{folder}/{name}", at_most), None
        except OSError as why:
            if why.errno in EXHAUSTED:
                raise
            error = why
    if error is not None:
        raise error
    return content


def link(pid: int | str, name: str) -> str:
    """Where the link /proc/PID/`name` leads. Raises OSError, ProcessLookupError if the process has ended."""
    error: OSError = ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/{name}")
    for folder in folders(pid):
        try:
            return os.readlink(f"{folder}/{name}")
        except OSError as why:
            error = why
    raise error


def open_namespace(pid: int, name: str) -> int:
    """A descriptor of the namespace (`net`, `mnt`, …) that the process is in. Raises OSError, ProcessLookupError."""
    error: OSError = ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), f"/proc/{pid}/ns/{name}")
    for folder in folders(pid):
        try:
            return os.open(f"{folder}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as why:
            error = why
    raise error


def descriptors(pid: int) -> dict[str, str]:
    """Where its open descriptors lead (files, `socket:[INODE]`, …), and the number of one that leads there. Empty if it
    has ended, or may not be looked at."""
    found = {}
    for folder in folders(pid):
        with contextlib.suppress(OSError), os.scandir(f"{folder}/fd") as entries:
            for each in entries:
                with contextlib.suppress(OSError):  # closed meanwhile
                    found[os.readlink(each.path)] = each.name
    return found


def owner(pid: int) -> int:
    """The user that it runs as, in our user namespace. Raises OSError."""
    return _source.owner(pid)


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have used so far. By the clock that clock_getcpuclockid(3) names."""
    return _source.processor_time(pid)


def threads(pid: int, most: int) -> list[str]:
    """The folders of up to `most` of its threads. Empty if it has ended."""
    return _source.threads(pid, most)


def states(pid: int, most: int) -> list[str]:
    """Of up to `most` of its threads, a letter each. Empty if it has ended. Raises OSError."""
    return _source.states(pid, most)


def _a_living(pid: int | str) -> int | None:
    first = _stat(f"/proc/{pid}/stat")
    if first is None:
        return None
    if first.state not in "ZX":
        return first.pid
    return next((each.pid for each in _others(first.pid)), None) if first.threads > 1 else None


def _others(pid: int) -> Iterator[Stat]:
    """The threads beside the first that live."""
    for folder in threads(pid, MOST_THREADS):
        if not folder.endswith(f"/{pid}") and (found := _stat(f"{folder}/stat")) and found.state not in "ZX":
            yield found


def _stat(path: str) -> Stat | None:
    try:
        text = _read(path, 4096)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name before may hold anything: spaces, brackets, bytes that are no text.
    fields = text[text.rindex(b")") + 2 :].decode().split()  # the third of proc_pid_stat(5) and those after it
    return Stat(
        int(text[: text.index(b" ")]), fields[0], int(fields[1]), int(fields[3]), int(fields[19]), int(fields[17]),
        int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]), int(fields[21]), int(fields[25]),
        int(fields[23]),
    )  # fmt: skip


def _read(path: str, at_most: int) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while at_most > 0 and (part := os.read(file, min(at_most, 1 << 16))):
            parts.append(part)
            at_most -= len(part)
        return b"".join(parts)
    finally:
        os.close(file)
