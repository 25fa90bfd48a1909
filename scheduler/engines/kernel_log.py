"""Whom the kernel has ended for lack of memory, and whose limit was passed: its own log says it of each.

    oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=…,mems_allowed=0,oom_memcg=/docker/<id>,
        task_memcg=/docker/<id>,task=dd,pid=11485,uid=0                       (a line; since Linux 5.0)

It is written before the signal is sent, so whoever has seen the end finds it. Nothing else is as sure. Docker's flag
is lost where the container's control group is removed before containerd comes to look at it (one of 30 ends on a busy
machine); the group's own count goes with it, before Docker tells of the end; and the host's count (host_memory.py)
says nothing about whom. To read the log takes CAP_SYSLOG, or a host that lets everybody.

The kernel leaves lines out where it ends more than ten processes in five seconds.
"""

import ctypes
import re
from dataclasses import dataclass

READ_ALL, SIZE = 3, 10  # of syslog(2)
# Whoever names a program can write into `task`, and nowhere else: lines of his own begin otherwise.
LINE = re.compile(
    r"^<\d+>(?:\[[^]]*\])*\s*oom-kill:constraint=\w+,.*?"
    r"(?:global_oom|oom_memcg=(?P<limit>[^,]*))"
    r",task_memcg=(?P<group>[^,]*),task=.*,pid=(?P<pid>\d+),uid=\d+$",
    re.MULTILINE,
)
HOST = "It was ended by a SIGKILL: the host ran out of memory, and its kernel ended a process for that."


@dataclass(frozen=True, slots=True)
class OomKill:
    """`group` is the control group that the process was in, `limit` the one whose limit was passed; empty: the host."""

    pid: int
    group: str
    limit: str

    def __str__(self) -> str:
        """A sentence for people. Of a container's own limit its engine has a better one."""
        if not self.limit:
            return HOST
        return f"Out of host memory: the processes in the control group {self.limit} passed its limit."


def oom_kills() -> list[OomKill] | None:
    """Those that the log still has, the oldest first. None if it cannot be read. Takes some milliseconds."""
    if (text := _read()) is None:
        return None
    return [OomKill(int(found["pid"]), found["group"], found["limit"] or "") for found in LINE.finditer(text)]


def of_process(pid: int) -> str:
    """The sentence about a process that has just ended; empty if the kernel has not ended it, or nobody may know."""
    return next((str(kill) for kill in reversed(oom_kills() or []) if kill.pid == pid), "")


def can_be_read() -> bool:
    return _syslog(SIZE, None, 0) > 0


def _read() -> str | None:
    size = _syslog(SIZE, None, 0)
    if size <= 0:
        return None
    buffer = ctypes.create_string_buffer(size)
    length = _syslog(READ_ALL, buffer, size)
    return buffer.raw[:length].decode(errors="replace") if length >= 0 else None


def _syslog(what: int, buffer: ctypes.Array[ctypes.c_char] | None, size: int) -> int:
    return int(ctypes.CDLL(None).klogctl(what, buffer, size))
