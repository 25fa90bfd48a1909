"""Lease pages from the scheduler's side: making, sending, taking over, reading and taking back.

A page is shared with a program that may scribble over it. So nothing read from a page is believed beyond the
scheduler's own number (`Lease.granted`): headroom above it is *forged*, is wiped out, and from then on nothing is
taken back from that page; what the process really holds is found through NVML (see measure.py).

The memory file is sealed against resizing, so that no process can make the scheduler fault by shrinking it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduler.gpus import uuid_bytes
from shim.binding import PAGE_NAME, BadPage, LeasePage, Slot

__all__ = ["BadPage", "Lease", "LeasePage", "Place", "find", "inode", "is_mapped", "make", "take_over"]

ANY = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Place:
    """What one slot of a page is for. `context` is what one CUDA context takes there."""

    gpu: str
    quota: int
    context: int


def make(pid: int, container: str, places: Sequence[Place]) -> LeasePage:
    """A new page for one process."""
    # The name lets a restarted scheduler tell the process's own page from one that a fork inherited.
    page = LeasePage.create([uuid_bytes(place.gpu) for place in places], name=f"{PAGE_NAME}-{pid}-{container}")
    for slot, place in zip(page, places, strict=True):
        _show_place(slot, place)
    return page


def take_over(fd: int, gpus: Sequence[str]) -> LeasePage:
    """Maps a page that a process has handed back; `fd` stays the caller's. Raises BadPage."""
    page = LeasePage.adopt(os.dup(fd))
    if page.uuids != tuple(uuid_bytes(gpu) for gpu in gpus):
        page.close()
        raise BadPage("it is not for this container's GPUs")
    return page


def inode(page: LeasePage) -> int:
    """Tells two pages apart, whatever file descriptors lead to them."""
    return os.fstat(page.fileno()).st_ino


def _show_place(slot: Slot, place: Place) -> None:
    slot.quota, slot.context = place.quota, place.context


class Lease:
    """The scheduler's account of one process on one GPU. `granted` is the truth; the page only shows it."""

    def __init__(self, slot: Slot, granted: int = 0) -> None:
        self._slot = slot
        self.granted = granted
        self.forged = False
        self._peak = 0
        self.measured = 0  # charged on top of what the process has charged itself: what the card was seen to hold more
        self.check()
        slot.granted = granted

    @property
    def used(self) -> int:
        """What the process uses, as far as its page tells. Never negative, never above `granted`."""
        return self.granted - self.headroom

    @property
    def headroom(self) -> int:
        self.check()
        return min(self._slot.headroom, self.granted) if not self.forged else 0

    @property
    def overhead(self) -> int:
        """The part of `used` that contexts take."""
        return min(self._slot.overhead + self.measured, self.used)

    def take_peak(self) -> int:
        """The most that was used since the last look, by the process's own word but never above `granted`."""
        self._note_peak()
        peak, self._peak = max(self._peak, self.used), 0
        return peak

    def _note_peak(self) -> None:
        self._peak = max(self._peak, min(self._slot.peak, self.granted))
        self._slot.peak = 0

    def check(self) -> bool:
        """Wipes out headroom that was never granted. True the first time that happens."""
        if self._slot.headroom <= self.granted:
            return False
        self._slot.take_back(ANY)
        first, self.forged = not self.forged, True
        return first

    def grant(self, size: int, *, idle: int = 0) -> None:
        """Raises the lease by `size` bytes in use and `idle` bytes of headroom."""
        self.granted += size + idle
        # In this order, `used` is never seen below what is really used.
        self._slot.granted = self.granted
        if idle:
            self._slot.extend(idle)

    def free(self, size: int) -> None:
        """Turns bytes in use into headroom: they were granted or charged, and nobody holds them after all."""
        self._slot.extend(min(size, self.used))

    def take_back(self, at_most: int = ANY) -> int:
        """Lowers the lease by up to `at_most` idle bytes; returns how many it was."""
        self.check()
        if self.forged:
            return 0
        self._note_peak()
        taken = self._slot.take_back(min(at_most, self.granted))
        self.granted -= taken
        self._slot.granted = self.granted
        return taken

    def charge(self, size: int) -> int:
        """Counts `size` bytes more as used, out of the headroom; returns how many did not fit in there."""
        rest = size - self._slot.take_back(min(size, self.headroom))
        self.measured += size
        return rest

    def discharge(self, size: int) -> None:
        """Gives back what `charge` has taken."""
        size = min(size, self.measured)
        self.measured -= size
        self.free(size)

    def show(self, place: Place, *, elsewhere: int) -> None:
        """Brings what the page only displays up to date."""
        _show_place(self._slot, place)
        self._slot.elsewhere = elsewhere

    def set_pressure(self, on: bool) -> None:
        self._slot.pressure = on


# ---- the pages of living processes ------------------------------------------------------------------------------


def holders() -> list[tuple[int, str]]:
    """The processes of this host that still have the lease page they were given, and for which container."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [(pid, match[1]) for pid in pids if (match := re.search(_link(pid), _maps(pid)))]


def find(pid: int) -> int | None:
    """A file descriptor of the lease page that this process was given, if it still has one; the caller closes it."""
    # A program may have closed all its descriptors; what it has mapped is still there (but needs more rights to open).
    for folder in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files"):
        for link in _links(folder):
            try:
                if re.fullmatch(_link(pid), os.readlink(link)):
                    return os.open(link, os.O_RDWR | os.O_CLOEXEC)
            except OSError:
                continue  # closed, or the process ended, meanwhile
    return None


def is_mapped(pid: int, inode: int) -> bool:
    """Whether the process still has this page. After an exec it has not: its memory on the card is gone as well."""
    return any(f" {inode} " in line and PAGE_NAME in line for line in _maps(pid).splitlines())


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return ""


def _link(pid: int) -> str:
    """How the page of this process shows in /proc; the container's id is the group."""
    return rf"/memfd:{PAGE_NAME}-{pid}-([0-9a-f-]+) \(deleted\)"


def _links(folder: str) -> list[str]:
    try:
        return [f"{folder}/{entry}" for entry in os.listdir(folder)]
    except OSError:
        return []
