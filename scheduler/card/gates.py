"""The gates of a container's processes, shut until all of them are at a cut (core/cut), and while they are locked.

    async with gates.shut() as why:      "": all are at a cut, and stay there; else why they are not, in a sentence

A gate that hears nothing for a second opens by itself, so nobody has to see to it that the scheduler lives: it says
every BEAT that it does. Where nothing counts collectives, nothing is asked and nothing waits.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from scheduler import clock
from scheduler.core import cut
from scheduler.core.cut import Channel, Cut, Looks, Seat
from shim.binding.gate import BEAT, Entry, Unseen
from web.spec.several_hosts import ELSEWHERE

# DDP on two H100s came to a cut within 13 ms (median) and 35 ms (most), FSDP within 2 and 6: what takes longer waits
# for something else, for which a program that is held back waits in vain.
HOLD = 0.2  # seconds
TRIES = 3  # and between two of them all go on, for BETWEEN seconds
BETWEEN = 0.05
LOOK = 0.001  # seconds between two looks
ALONE = 2**48 - 1  # operations: a rank that is alone waits for nobody

UNSEEN = {
    Unseen.FULL: "more communicators than can be counted",
    Unseen.SECOND: "a second NCCL library",
    Unseen.DEVICE: "NCCL calls made by kernels",
    Unseen.GRAPH: "a CUDA graph whose collectives could not be counted",
    Unseen.IDENTITY: "a communicator made before its calls were counted",
    Unseen.STATIC: "an NCCL that is linked statically",
    Unseen.NVSHMEM: "NVSHMEM",
}


class Gate(Protocol):
    """A process's, as shim/binding/gate.py has it."""

    def ask(self) -> None: ...
    def let_go(self) -> None: ...
    @property
    def unseen(self) -> Unseen: ...
    @property
    def passed(self) -> int: ...
    def entries(self) -> list[Entry]: ...
    def limit(self, entry: Entry, number: int) -> None: ...


Its = Callable[[], Mapping[int, Gate]]  # pid → gate, of all processes that may compute


def seat_of(entry: Entry) -> Seat:
    return Seat(
        Channel(*entry.channel), entry.rank, entry.ranks,
        entry.begun, entry.given, entry.limit, entry.wanted, entry.left,
    )  # fmt: skip


def communicators(gates: Mapping[int, Gate]) -> frozenset[int]:
    """Those of several ranks that these processes are in."""
    return frozenset(
        entry.communicator for gate in gates.values() for entry in gate.entries() if entry.ranks > 1 and not entry.left
    )


def ranks(gates: Mapping[int, Gate]) -> list[tuple[int, int, int]]:
    """(rank, of how many, pid) in the largest communicator of each process; a process may have several."""
    found = []
    for pid, gate in gates.items():
        its = {(entry.rank, entry.ranks) for entry in gate.entries() if entry.ranks > 1 and not entry.left}
        most = max((size for _, size in its), default=0)
        found += [(rank, size, pid) for rank, size in its if size == most]
    return sorted(found)


def uncounted(gates: Mapping[int, Gate]) -> str:
    """What of it is not counted, as words; empty if nothing is known."""
    what = Unseen(0)
    for gate in gates.values():
        what |= gate.unseen
    return ", ".join(words for each, words in UNSEEN.items() if each in what)


class Gates:
    """Of a container, or of several that have their turns together."""

    def __init__(self, its: Its) -> None:
        self._its = its
        self._known: dict[int, set[int]] = {}  # communicator → those of its ranks that were ever here

    @contextlib.asynccontextmanager
    async def shut(self) -> AsyncIterator[str]:
        """They open again at the end. While they are at a cut, what keeps a card busy comes to its end by itself."""
        if not any(self._looks(self._its()).values()):
            yield ""
            return
        beating: asyncio.Task[None] | None = None
        try:
            why = await self._reach()
            if not why:
                beating = asyncio.create_task(self._beat(), name="gates")
            yield why
        finally:
            if beating is not None:
                beating.cancel()
            self._let_go()

    async def _reach(self) -> str:
        why = self._elsewhere()
        for attempt in range(0 if why else TRIES):
            if attempt:
                await asyncio.sleep(BETWEEN)
            if not (why := await self._hold()):
                break
            self._let_go()
        return why

    async def _hold(self) -> str:
        """One try."""
        found, until = Cut(), clock.monotonic() + HOLD
        begun = {pid: (gate, gate.passed) for pid, gate in self._its().items()}
        self._ask()
        pause = 0.0
        while clock.monotonic() < until:
            gates = self._its()
            looks = self._looks(gates)
            found = cut.advance(found, clock.monotonic(), looks)
            if found.reached and gates.keys() <= begun.keys():
                if all(gate.passed == passed for gate, passed in begun.values()):
                    return ""
                return "The scheduler was too busy to stop it."
            for pid in gates.keys() - begun.keys():
                begun[pid] = gates[pid], gates[pid].passed
                gates[pid].ask()
            self._limit(gates, found)
            await asyncio.sleep(pause)  # the second look is at once: most are at a cut then
            pause = LOOK
        return _why(found)

    def _limit(self, gates: Mapping[int, Gate], found: Cut) -> None:
        for gate in gates.values():
            raised = False
            for entry in gate.entries():
                limit = ALONE if entry.ranks == 1 else found.limits.get(Channel(*entry.channel), entry.limit)
                if limit != entry.limit:
                    gate.limit(entry, limit)
                    raised = raised or limit > entry.limit
            if raised:
                gate.ask()  # wakes who is held back

    def _looks(self, gates: Mapping[int, Gate]) -> Looks:
        looks = {pid: seats for pid, gate in gates.items() if (seats := [seat_of(each) for each in gate.entries()])}
        there = [(seat.channel.communicator, seat.rank) for seats in looks.values() for seat in seats]
        self._known = {each: self._known.get(each, set()) for each, _ in there}  # a program may write any number
        for communicator, rank in there:
            self._known[communicator].add(rank)
        return looks

    def _elsewhere(self) -> str:
        looks = self._looks(self._its())
        for communicator, missing in cut.missing(looks).items():
            of_it = [
                (seat.rank, pid)
                for pid, seats in looks.items()
                for seat in seats
                if seat.channel.communicator == communicator
            ]
            missing -= len(self._ended(communicator, looks))
            if missing > 0:
                rank, pid = min(of_it)
                return (
                    f"Process {pid} (rank {rank}) works with {missing} {ELSEWHERE} in containers of its owner. "
                    "Ranks wait for each other, so they can only be stopped together."
                )
        return ""

    def _ended(self, communicator: int, looks: Looks) -> set[int]:
        """Its ranks that were here once, and are not any more."""
        here = {s.rank for seats in looks.values() for s in seats if s.channel.communicator == communicator}
        return self._known[communicator] - here

    @property
    def left_behind(self) -> bool:
        """Whether a rank has ended with which others here work: what they began with it may never be done."""
        looks = self._looks(self._its())
        return any(self._ended(each, looks) for each in cut.missing(looks))

    def _ask(self) -> None:
        for gate in self._its().values():
            gate.ask()

    def _let_go(self) -> None:
        for gate in self._its().values():
            gate.let_go()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT / 2)
            self._ask()


def _why(found: Cut) -> str:
    """Why no cut was reached."""
    pids = sorted(found.calling) if found.calling and not found.behind else sorted(found.behind)
    named = " and ".join(map(str, pids[:2])) + (f" and {len(pids) - 2} others" if len(pids) > 2 else "")
    if found.calling and not found.behind:
        return (
            f"Process {named} did not return from NCCL within {HOLD:g} s, so its ranks could not be stopped together."
        )
    return (
        f"Process {named} did not begin within {HOLD:g} s what other ranks wait for, so its ranks could not be stopped "
        "together."
    )
