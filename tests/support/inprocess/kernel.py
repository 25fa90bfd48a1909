"""The kernel's word on processes that are coroutines: each has a pid of its own, above all that Linux gives."""

import itertools
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from scheduler import clock, proc

TICKS = os.sysconf("SC_CLK_TCK")
_pids = itertools.count((1 << 22) + 1)  # PID_MAX_LIMIT is 1 << 22


class Kernel(proc.Source):
    """Knows the coroutines' processes, and of all others what Linux says. A process is named by the address that its
    sockets are bound to."""

    def __init__(self, folder: Path) -> None:
        """`folder` gets what /proc has of their threads, of which each has one."""
        self.stats: dict[int, proc.Stat] = {}
        self.computed: Callable[[int], float] = lambda pid: 0.0  # seconds on cards, which keep a thread busy
        self._worked: Counter[int] = Counter()  # pid → seconds of a processor beside that
        self._folder = folder
        self._ends: dict[int, int] = {}  # pid → what its pidfds are copies of

    def begin(self) -> int:
        pid = next(_pids)
        self._ends[pid] = os.eventfd(0)
        self.exec(pid)
        (task := self._folder / str(pid)).mkdir(parents=True)
        (task / "comm").write_text("python\n")
        (task / "syscall").write_text("202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffe 0x7f00\n")
        (task / "status").write_text("voluntary_ctxt_switches:\t1\n")
        self.works(pid, 0.0)
        return pid

    def works(self, pid: int, seconds: float) -> None:
        """Of a processor. More than a moment of it is noticed (scheduler/monitors/activity.py)."""
        self._worked[pid] += seconds
        (self._folder / str(pid) / "schedstat").write_text(f"{int(self._worked[pid] * 1e9)} 0 1\n")

    def exec(self, pid: int) -> None:
        """It runs another program from now on."""
        before = self.stats.get(pid)
        started = before.started if before else int(clock.boot() * TICKS) + 1
        self.stats[pid] = proc.Stat(pid, "S", 1, pid, started, 1, stack=before.stack + 1 if before else 1)

    def end(self, pid: int) -> None:
        self.stats.pop(pid, None)
        if (end := self._ends.pop(pid, None)) is not None:
            os.eventfd_write(end, 1)
            os.close(end)

    def freeze(self, pid: int, frozen: bool = True) -> None:
        if pid in self.stats:
            self.stats[pid] = self.stats[pid]._replace(state="T" if frozen else "S")

    def address(self, pid: int) -> str:
        """Of one more socket of its."""
        return f"\0gpushare-test-{os.getpid()}-{pid}-{next(_pids)}"

    # ---- proc.Source ----

    def stat(self, pid: int | str) -> proc.Stat | None:
        return self.stats.get(int(pid)) or super().stat(pid)

    def peer(self, sock: socket.socket) -> proc.Peer:
        name = sock.getpeername()
        if not isinstance(name, bytes) or not name.startswith(b"\0gpushare-test-"):
            return super().peer(sock)
        pid = int(name.split(b"-")[3])
        return proc.Peer(pid, os.getuid(), self.pidfd(pid))

    def pids(self) -> list[int]:
        return sorted(self.stats)

    def pidfd(self, pid: int) -> int:
        if pid in self._ends:
            return os.dup(self._ends[pid])
        return super().pidfd(pid)

    def folders(self, pid: int | str) -> Iterator[str]:
        """Their pages are open and mapped in this process, each under the name of its own."""
        return iter(["/proc/self"]) if int(pid) in self.stats else super().folders(pid)

    def owner(self, pid: int) -> int:
        return os.getuid() if pid in self.stats else super().owner(pid)

    def processor_time(self, pid: int) -> float:
        return self._worked[pid] + self.computed(pid) if pid in self.stats else super().processor_time(pid)

    def threads(self, pid: int, most: int) -> list[str]:
        return [str(self._folder / str(pid))] if pid in self.stats else super().threads(pid, most)

    def states(self, pid: int, most: int) -> list[str]:
        return [self.stats[pid].state] if pid in self.stats else super().states(pid, most)
