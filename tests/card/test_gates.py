"""Gates of ranks that are asked together: real pages, in which tasks of the test do what ranks do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import cast

import pytest

from scheduler.card import gates
from scheduler.card.gates import Gates, communicators, ranks, uncounted
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardError, CardHelper, State, Why
from scheduler.card.processes import LEFT_BEHIND, Processes
from shim.binding import LeasePage
from shim.binding.gate import Gate, Kind, Unseen
from tests.support.eventually import eventually

A, B = 7, 8  # communicators


class Ranks:
    """So many processes, each with a rank in A; `its` is what the scheduler knows."""

    def __init__(self, count: int, of: int | None = None) -> None:
        self.pages = [LeasePage.create([bytes(16)]) for _ in range(count)]
        self.its: dict[int, Gate] = {100 + rank: page.gate for rank, page in enumerate(self.pages)}
        self.seats = [gate.open(A, Kind.COLLECTIVE, of or count, rank) for rank, gate in enumerate(self.its.values())]
        self.gates = Gates(lambda: self.its)
        self._tasks: list[asyncio.Task[None]] = []

    def runs(self, rank: int, *, every: float = 0.0, ahead: int = 5) -> None:
        """It begins one after the other, at most so many more than the others have."""
        self._tasks.append(asyncio.create_task(self._run(rank, every, ahead)))

    async def _run(self, rank: int, every: float, ahead: int) -> None:
        gate, seat = self.its[100 + rank], self.seats[rank]
        while True:
            await asyncio.sleep(every)
            if self.begun(rank) < min(map(self.begun, range(len(self.seats)))) + ahead and gate.begin((seat, 1)):
                await asyncio.sleep(0)
                gate.give((seat, 1))

    def stands_still(self, rank: int) -> None:
        self._tasks[rank].cancel()

    def begun(self, rank: int) -> int:
        return self.its[100 + rank].entries()[0].begun

    @property
    def asked(self) -> bool:
        return any(gate.asked for gate in self.its.values())

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for page in self.pages:
            page.close()


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ranks]:
    monkeypatch.setattr(gates, "HOLD", 0.05)
    pair = Ranks(2)
    yield pair
    pair.end()


@contextlib.asynccontextmanager
async def going(pair: Ranks) -> AsyncIterator[None]:
    pair.runs(0)
    pair.runs(1, every=0.003)
    await eventually(lambda: pair.begun(0) == pair.begun(1) + 5)
    yield
    before = pair.begun(1)
    await eventually(lambda: pair.begun(1) > before + 5)


async def test_ranks_of_different_speed_come_to_a_cut_stay_there_and_go_on(pair: Ranks, monkeypatch) -> None:
    monkeypatch.setattr(gates, "HOLD", 60.0)
    alone = pair.its[101].open(B, Kind.COLLECTIVE, 1, 0)
    async with going(pair), pair.gates.shut() as why:
        begun = pair.begun(0)
        assert pair.its[101].begin((alone, 3)), "a rank that waits for nobody is not held back"
        assert (why, pair.begun(1)) == ("", begun)
        asked = [gate.asked for gate in pair.its.values()]
        await eventually(lambda: all(gate.asked != was for gate, was in zip(pair.its.values(), asked, strict=True)))
        assert (pair.begun(0), pair.begun(1)) == (begun, begun), (
            "although it is said again and again that they are asked"
        )
    assert not pair.asked


async def test_one_whose_sibling_begins_nothing_is_named_and_goes_on(pair: Ranks) -> None:
    pair.runs(0, ahead=2)
    await eventually(lambda: pair.begun(0) == 2)
    async with pair.gates.shut() as why:
        assert why.startswith("Process 101 did not begin within 0.05 s what other ranks wait for")
        assert not pair.asked
    pair.runs(1)
    await eventually(lambda: pair.begun(1) > 5)


async def test_64_ranks_come_to_a_cut_and_where_one_begins_nothing_all_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Ranks(64)
    for rank in range(64):
        many.runs(rank, every=0.001 * (rank % 3))
    await eventually(lambda: min(map(many.begun, range(64))) > 3)
    monkeypatch.setattr(gates, "HOLD", 60.0)
    async with many.gates.shut() as why:
        assert (why, len(set(map(many.begun, range(64))))) == ("", 1)
    before = many.begun(63)
    await eventually(lambda: many.begun(63) > before)
    many.stands_still(63)
    await eventually(lambda: {many.begun(rank) for rank in range(63)} == {many.begun(63) + 5})
    monkeypatch.setattr(gates, "HOLD", 0.05)
    async with many.gates.shut() as why:
        assert why.startswith("Process 163 did not begin within 0.05 s")
    assert not many.asked
    many.end()


async def test_a_call_that_does_not_return_is_named(pair: Ranks) -> None:
    for gate, seat in zip(pair.its.values(), pair.seats, strict=True):
        assert gate.begin((seat, 1))
    pair.its[100].give((pair.seats[0], 1))
    async with pair.gates.shut() as why:
        assert why.startswith("Process 101 did not return from NCCL")


async def test_who_ends_in_the_middle_is_waited_for_no_longer(pair: Ranks, monkeypatch) -> None:
    monkeypatch.setattr(gates, "HOLD", 60.0)
    pair.runs(0, ahead=2)
    await eventually(lambda: pair.begun(0) == 2)
    asking = asyncio.create_task(_why(pair))
    await eventually(lambda: pair.asked)
    del pair.its[101]
    assert await asking == ""
    await eventually(lambda: not pair.asked)


async def test_one_that_is_broken_off_leaves_nobody_at_the_gate(pair: Ranks, monkeypatch) -> None:
    monkeypatch.setattr(gates, "HOLD", 60.0)
    pair.runs(0, ahead=2)
    await eventually(lambda: pair.begun(0) == 2)
    asking = asyncio.create_task(_why(pair))
    await eventually(lambda: pair.asked)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert not pair.asked


async def _why(pair: Ranks) -> str:
    async with pair.gates.shut() as why:
        return why


async def test_ranks_of_another_host_are_known_and_nobody_is_asked() -> None:
    pair = Ranks(2, of=4)
    for gate, seat in zip(pair.its.values(), pair.seats, strict=True):
        assert gate.begin((seat, 1))
        gate.give((seat, 1))
    async with pair.gates.shut() as why:
        assert why.startswith("Process 100 (rank 0) works with 2 ranks that are not on this host")
        assert not pair.asked
    pair.end()


async def test_whose_rank_has_ended_has_little_time_to_be_stopped(pair: Ranks) -> None:
    """What it has begun with that one keeps its card busy for ever, and all others wait until it is given up."""
    asked = []

    class Card:
        async def stop(self, pid: int, within: float) -> None:
            asked.append((pid, within))
            raise CardError(Why.FAILED, pid, "the stop failed", State.RUNNING)

        async def unlock(self, pid: int, within: float) -> None: ...

    class Watches:
        async def watch(self, pids: set[int]) -> None: ...
        def release(self, pids: object) -> None: ...
        def locked(self, pids: object) -> None: ...

    its = Processes(
        "one", cast("CardHelper", Card()), cast("Guardian", Watches()), lambda _: set(pair.its), lambda: pair.its
    )
    for gate, seat in zip(pair.its.values(), pair.seats, strict=True):
        assert gate.begin((seat, 1))
        gate.give((seat, 1))
    assert "has ended" not in await its.lock()
    assert all(within > LEFT_BEHIND for _, within in asked)
    await its.unlock()
    del pair.its[101], asked[:]
    assert (await its.lock()).endswith("A rank that it works with has ended, so it may wait for that one for ever.")
    ((pid, within),) = asked
    assert (pid, within <= LEFT_BEHIND) == (100, True)


async def test_where_nothing_is_counted_nobody_is_asked(pair: Ranks) -> None:
    page = LeasePage.create([bytes(16)])
    async with Gates(lambda: {9: page.gate}).shut() as why:
        assert (why, page.gate.asked) == ("", 0)
    page.close()


def test_what_a_container_has_of_ranks_and_what_is_not_counted(pair: Ranks) -> None:
    pair.its[101].open(B, Kind.COLLECTIVE, 1, 0)
    assert ranks(pair.its) == [(0, 2, 100), (1, 2, 101)]
    assert communicators(pair.its) == {A}
    assert uncounted(pair.its) == ""
    pair.its[101].unsee(Unseen.STATIC)
    assert uncounted(pair.its) == "an NCCL that is linked statically"
