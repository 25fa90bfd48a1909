"""Lease pages from the scheduler's side: making, sending, taking over, reading and taking back.

A page is shared with a program that may scribble over it. So nothing read from a page is believed beyond the
scheduler's own number (`Lease.granted`): a page in which somebody has changed the scheduler's words, or that shows more
headroom than was leased, is *forged*. Its headroom is wiped out, and from then on nothing is taken back from it; what
the process really holds is found through NVML (see measure.py).

The memory file is sealed against resizing, so that no process can make the scheduler fault by shrinking it.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from scheduler import proc
from scheduler.gpus import uuid_bytes
from shim.binding import EXHAUSTED, PAGE_NAME, BadPage, LeasePage
from shim.binding.slots import Slot

__all__ = ["BadPage", "Lease", "LeasePage", "Place", "find", "inode", "make", "slots", "take_over"]

ANY = 2**64 - 1
PIECE = 64 << 10  # bytes of a map that are read at once
MOST_LINKS = 65536  # of a folder of a process that are looked at


@dataclass(frozen=True, slots=True)
class Place:
    """What one slot of a page is for. `context` is what one CUDA context takes there."""

    gpu: str
    quota: int
    context: int


def make(pid: int, container: str, places: Sequence[Place]) -> LeasePage:
    """A new page for one process."""
    # The name lets a restarted scheduler tell the process's own page from one that a fork inherited.
    name = f"{PAGE_NAME}-{pid}-{container}"
    page = LeasePage.create([uuid_bytes(place.gpu) for place in places], name)
    for slot, place in zip(page, places, strict=True):
        _show_place(slot, place)
    return page


def take_over(fd: int, gpus: Iterable[str], card_move: Mapping[str, str]) -> LeasePage:
    """Maps a page that was found in a process; `fd` stays the caller's. Raises BadPage.

    `card_move`: the scheduler before may not have said there yet that it goes to another card.
    """
    page = LeasePage.adopt(os.dup(fd))
    for slot in page if card_move else ():
        if slot.uuid == uuid_bytes(card_move["from"]):
            slot.uuid = uuid_bytes(card_move["to"])
    if not slots(page, gpus):
        page.close()
        raise BadPage("it is not for this container's GPUs")
    page.gate.let_go()  # nobody asks any more
    return page


def slots(page: LeasePage, gpus: Iterable[str]) -> dict[str, int]:
    """Where in the page each of the GPUs is: one may have come or gone since the page was made, and is left out."""
    places = {uuid: index for index, uuid in reversed(list(enumerate(page.uuids)))}
    return {gpu: places[uuid] for gpu in gpus if (uuid := uuid_bytes(gpu)) in places}


def inode(page: LeasePage) -> int:
    """Tells two pages apart, whatever file descriptors lead to them."""
    return os.fstat(page.fileno()).st_ino


def _show_place(slot: Slot, place: Place) -> None:
    slot.quota, slot.context = place.quota, place.context


class Lease:
    """The scheduler's account of one process on one GPU. `granted` is the truth; the page only shows it.

    Each step below changes one word of the page, so that the next scheduler finds a page that is right wherever this
    one ends (lease.h).
    """

    def __init__(self, slot: Slot, index: int, note: Callable[[int], None] = lambda granted: None) -> None:
        """`note` is called with what `granted` is to be, before the page says more and after it says less."""
        self.index = index  # of the slot in its page
        self._note = note
        self._granted = 0
        self.measured = 0  # inside `granted`: what the card shows beyond what the process has charged itself
        self.out = 0  # inside `granted`: what it had on the card before it was swapped out
        self.unheard = 0  # inside `granted`: sent, but not heard of; whoever asks again is answered again
        self.forged = False
        self._slot = slot
        self._beyond = 0  # what the page had more than there was room for when it was taken over
        self._peak = 0

    @classmethod
    def taken_over(cls, slot: Slot, index: int, room: int, note: Callable[[int], None] = lambda granted: None) -> Self:
        """What a process uses under another scheduler's lease, up to `room`. No page brings headroom with it."""
        slot.settle()
        lease = cls(slot, index, note)
        held = max(0, slot.leased)
        lease.granted = min(held, max(0, room))
        lease._beyond = held - lease.granted
        lease.measured = min(slot.measured, lease.granted)
        lease.check()
        return lease

    def reassign(self, uuid: bytes, note: Callable[[int], None]) -> None:
        """It is for another card: all of it is out."""
        self._slot.uuid = uuid
        note(self._granted)
        self._note = note

    @property
    def granted(self) -> int:
        return self._granted

    @granted.setter
    def granted(self, size: int) -> None:
        self._note(size)
        self._granted = size

    @property
    def used(self) -> int:
        """What the process uses of the card, as far as its page tells. Never negative, never above `held`."""
        return max(0, self._charged - self.out)

    @property
    def held(self) -> int:
        """What nobody else can have of the card because of this process: all that was granted, but what is out."""
        return self.granted - self.out

    @property
    def _charged(self) -> int:
        """What its page shows as used, be it on the card or swapped out: a page knows nothing of swapping."""
        return self.granted - self.headroom

    @property
    def headroom(self) -> int:
        shown = self._slot.look(self.granted + self._beyond)
        if shown is None or self.forged:
            self.check()
            return 0
        return max(0, shown - self._beyond)

    @property
    def overhead(self) -> int:
        """The part of `used` that contexts take."""
        return min(self._slot.overhead + self.measured, self.used)

    def take_peak(self) -> int:
        """The most that was used since the last look and freed since, by the process's own word, up to `granted`."""
        self._note_peak()
        peak, self._peak = self._peak, 0
        return peak

    def _note_peak(self) -> None:
        self._peak = max(self._peak, min(self._slot.take_peak(), self.granted))

    def check(self) -> bool:
        """Wipes out headroom that was never granted. True the first time that happens."""
        first = not self.forged and self._slot.look(self.granted + self._beyond) is None
        self.forged = self.forged or first
        if first or (self.forged and self._slot.headroom):
            self._slot.wipe()
        return first

    def grant(self, size: int, *, idle: int = 0) -> None:
        """Raises the lease by `size` bytes for a call that waits and `idle` bytes of headroom. Then tell it."""
        self.granted += size + idle
        self._slot.grant(size)
        if idle and not self.forged:
            self._slot.extend(idle)

    def said_hello(self) -> None:
        """The process has a new connection: nothing more can reach it from an earlier one."""
        self.check()
        self.unheard = 0 if self.forged else min(self._slot.unheard, self._charged)

    def tell_again(self, size: int) -> bool:
        """Whether a call that asks for `size` bytes has been granted them already without hearing of it."""
        unheard = 0 < size <= min(self.unheard, self._charged)
        self.unheard -= size if unheard else 0
        return unheard

    def give_up_unheard(self) -> int:
        """Lowers the lease by what was granted and nobody asks for any more; returns how many bytes it was."""
        size, self.unheard = min(self.unheard, self.used), 0  # a program may have "freed" it, and it came back
        self._slot.grant(-size)
        return self._lower(size)

    def take_back(self, at_most: int = ANY) -> int:
        """Lowers the lease by up to `at_most` idle bytes; returns how many it was."""
        if not self._granted and not self._beyond:
            return 0  # without a look at its page: a container may have a thousand processes that hold nothing
        self.check()
        if self.forged or self.out:
            return 0
        self._note_peak()
        taken = self._slot.take_back(min(at_most, self.granted) + self._beyond)
        return self._lower(taken) if taken else 0

    def _lower(self, size: int) -> int:
        """The page has `size` bytes less; returns how many of them were in the account."""
        beyond = min(size, self._beyond)
        self._beyond -= beyond
        self.granted -= size - beyond
        return size - beyond

    def put_out(self) -> int:
        """What it holds is on the card no more; returns how many bytes more that are than before."""
        more, self.out = self.held, self.granted
        return more

    def bring_back(self, size: int) -> None:
        """Of what was out, `size` bytes are to be on the card again."""
        self.out -= size

    def charge(self, size: int) -> int:
        """Counts `size` bytes more as used, out of the headroom; returns by how many the lease has grown for it."""
        known = min(size, self._beyond)  # the page has it already
        self._beyond -= known
        self.granted += known
        if known == size:
            return known
        headroom, size = self.headroom, size - known
        self._note_peak()
        self.measured += size
        self.granted += size
        self._slot.measure(size)
        return known + size - self.take_back(min(size, headroom))

    def discharge(self, size: int) -> int:
        """Counts up to `size` bytes less of what `charge` has counted; returns by how many the lease is lower now."""
        size = min(size, self.measured)
        self._note_peak()
        self.measured -= size
        self._slot.measure(-size)
        return self._lower(size)

    @property
    def waiting(self) -> float:
        """Since when the container waits, by the last scheduler's word; 0 if it does not."""
        return self._slot.waiting

    def show(self, place: Place, *, elsewhere: int) -> None:
        """Brings what the page only displays up to date."""
        _show_place(self._slot, place)
        self._slot.elsewhere = elsewhere

    def show_waiting(self, since: float | None) -> None:
        self._slot.waiting = since or 0.0

    def set_pressure(self, on: bool) -> None:
        self._slot.pressure = on


# ---- the pages of living processes: what is in its /proc files, and how much, a process chooses -----------------


def holders(pids: Iterable[int], at_most: int) -> list[tuple[int, str]]:
    """Those of these processes that still have the lease page they were given, and for which container.

    Of a map longer than `at_most` bytes only the first are read: a page that lies beyond is not found.
    """
    found = ((pid, filter(None, (_page_in(pid, piece) for piece in _map(pid, at_most)))) for pid in pids)
    return [(pid, match[1].decode()) for pid, matches in found for match in itertools.islice(matches, 1)]


def find(pid: int, container: str) -> int | None:
    """A file descriptor of the page that this process was given for this container, if any; the caller closes it."""
    # A program may have closed all its descriptors; what it has mapped is still there (but needs more rights to open).
    for folder in proc.folders(pid):
        for link in itertools.chain(_links(f"{folder}/fd"), _links(f"{folder}/map_files")):
            try:
                match = _page_in(pid, os.readlink(os.fsencode(link)))
                if match and match[1].decode() == container and (fd := _open(link)) is not None:
                    return fd
            except OSError as error:
                _must_be_gone(error)
    return None


def _open(link: str) -> int | None:
    """Only a memory file: a program can give a device of the host, or a FIFO, a page's name, and to open that acts."""
    named = os.open(link, os.O_PATH | os.O_CLOEXEC)
    try:
        if os.fstat(named).st_dev != _memory_files():
            return None
        return os.open(f"/proc/self/fd/{named}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(named)


@cache
def _memory_files() -> int:
    """The device that all memory files of this host are on, and nothing that has a path."""
    fd = os.memfd_create(PAGE_NAME, os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


def _map(pid: int, at_most: int) -> Iterator[bytes]:
    """The first `at_most` bytes of /proc/PID/maps or a little more, in pieces of whole lines."""
    for folder in proc.folders(pid):
        rest = b""
        try:
            with open(f"{folder}/maps", "rb", buffering=0) as file:
                while piece := file.read(PIECE):
                    whole, newline, rest = (rest + piece).rpartition(b"\n")
                    yield whole + newline
                    at_most -= len(piece)
                    if at_most <= 0:
                        return
        except OSError as error:
            _must_be_gone(error)


def _must_be_gone(error: OSError) -> None:
    """A process, or its descriptor, that went meanwhile is one thing; that we cannot look is another, and is raised."""
    if error.errno in EXHAUSTED:
        raise error


def _page_in(pid: int, text: bytes) -> re.Match[bytes] | None:
    """How the page of this process shows in /proc; the container's id is the group."""
    return re.search(rb"/memfd:%b-%d-([0-9a-f-]+) \(deleted\)" % (PAGE_NAME.encode(), pid), text)


def _links(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.path for entry in itertools.islice(entries, MOST_LINKS))
    except OSError as error:
        _must_be_gone(error)
