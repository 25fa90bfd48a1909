"""Two things at once, and something that dies or stands still between any two steps of a turn."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.card import helper as card_helper
from scheduler.card import turns
from scheduler.card.generation import Generation
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardError, CardHelper, State
from scheduler.card.processes import Processes
from scheduler.card.terms import Seen, Terms
from scheduler.card.turns import TurnPlayer
from scheduler.core.turns import Mode, Rules
from tests.card.test_guardian import GUARDIAN, LONG, all_go_on, program
from tests.card.workers import worker
from tests.support.card import Card
from tests.support.eventually import eventually
from tests.support.running import children, command, ended

GPU = "GPU-0"
LOCK, HANGS = 1, 2
LETS_NOBODY_GO = """#!/bin/sh
echo ready
while read -r line; do case $line in +*) printf . ;; esac; done
"""  # a guardian that is killed just as the scheduler ends


class Pair:
    """Two containers of a process each, which always compute."""

    def __init__(self, card: Card, lock: Path, guardian: Path = GUARDIAN) -> None:
        self.programs = {"one": program(card), "two": program(card)}
        self.guardian = Guardian(guardian, Generation(lock), card.env())
        self.player = TurnPlayer(CardHelper(card.env()), self.guardian, Rules(cycle=0.4))
        self.player.pids = lambda id_: {self.programs[id_].pid}
        self.reports: list[tuple[str, str]] = []
        self.player.report = lambda id_, why: self.reports.append((id_, why))

    async def begin(self) -> None:
        await self.player.start({GPU: Mode.TURNS})
        self.player.join({id_: Terms((GPU,)) for id_ in self.programs})
        self.compute()
        await self.take_turns()

    def compute(self) -> None:
        self.player.see({id_: Seen((GPU,)) for id_ in self.programs})

    async def take_turns(self) -> None:
        for id_ in self.programs:
            await eventually(lambda: self.player.is_stopped(id_))  # noqa: B023

    def asked(self, id_: str) -> bool:
        """Something is being done about it just now, and it may be locked."""
        part = self.player._parts[id_]
        return part.is_busy and bool(part.processes.locked)


@pytest.fixture
async def pair(card: Card, tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(card, tmp_path / "lock")
    await pair.begin()
    yield pair
    await pair.player.close()


async def test_one_that_is_frozen_and_barred_in_the_middle_of_a_lock_goes_on_when_it_is_thawed(
    pair: Pair,
    helper: CardHelper,
) -> None:
    one = pair.programs["one"]
    await eventually(lambda: pair.player.is_stopped("two") and not pair.asked("one"))
    os.kill(one.pid, signal.SIGSTOP)
    await eventually(lambda: pair.asked("one"))
    pair.player.bar("one", "state")
    await eventually(lambda: not pair.player._parts["one"].is_busy)
    pair.player.see({"one": Seen(), "two": Seen((GPU,))})
    os.kill(one.pid, signal.SIGCONT)
    pair.player.bar("one", "state", on=False)
    await eventually(pair.player._parts["one"].quiet.is_set, LONG)
    assert await all_go_on(helper, one) < LONG


async def test_that_one_takes_no_turns_is_reported_until_it_was_stopped_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not until it may be stopped again: that it may be is no sign that it can be."""
    monkeypatch.setattr(turns, "HUNG_FOR", 0.0)
    reported: list[tuple[str, str, bool]] = []
    pair.player.report = lambda id_, why: reported.append((id_, why, pair.player.is_stopped(id_)))
    pair.player.hang("one", "It hung.")
    await eventually(lambda: not pair.player._parts["one"].barred)
    pair.compute()
    await eventually(lambda: len(reported) > 1)
    await pair.take_turns()
    assert [each[:2] for each in reported] == [("one", "It hung."), ("one", "")]
    assert reported[1][2]  # it is stopped


async def test_of_a_container_that_ends_while_it_is_stopped_nobody_is_let_go_later(pair: Pair) -> None:
    """Another process, which is just being moved, may have its number by then."""
    await eventually(lambda: pair.player.is_stopped("one"))
    pid = pair.programs["one"].pid
    os.kill(pid, signal.SIGKILL)
    pair.player.join({"two": Terms((GPU,))})
    assert pid not in pair.player._card._stopped


async def test_a_fault_of_ours_at_one_turn_holds_up_nobody(pair: Pair, helper: CardHelper) -> None:
    await eventually(lambda: pair.player.is_stopped("two") and not pair.asked("one"))
    pids = pair.player.pids

    def once(id_: str) -> set[int]:
        pair.player.pids = pids
        raise RuntimeError(id_)

    pair.player.pids = once
    await eventually(lambda: pair.reports, LONG)
    assert await all_go_on(helper, *pair.programs.values()) < LONG


async def test_a_guardian_that_stands_still_is_replaced(pair: Pair) -> None:
    first = pair.guardian.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    try:
        await eventually(lambda: pair.guardian.pid not in (None, first))
        await pair.take_turns()
    finally:
        if not ended(first):
            os.kill(first, signal.SIGCONT)


async def test_without_a_guardian_nobody_stays_stopped(card: Card, helper: CardHelper, tmp_path: Path) -> None:
    """It is gone, and the next one cannot be started."""
    place = tmp_path / "guardian"
    place.symlink_to(GUARDIAN)
    pair = Pair(card, tmp_path / "lock", place)
    await pair.begin()
    assert pair.guardian.pid is not None
    place.unlink()
    os.kill(pair.guardian.pid, signal.SIGKILL)
    await eventually(lambda: pair.reports, LONG)
    assert await all_go_on(helper, *pair.programs.values()) < LONG
    assert "The guardian cannot be started" in pair.reports[0][1]
    await pair.player.close()


async def test_whom_the_guardian_does_not_know_it_does_not_unlock(
    card: Card,
    helper: CardHelper,
    generation: Generation,
    tmp_path: Path,
) -> None:
    one = program(card)
    guardian = Guardian(tmp_path / "guardian", generation, card.env())
    with pytest.raises(CardError):
        await guardian.watch([one.pid])
    (tmp_path / "guardian").symlink_to(GUARDIAN)
    await guardian.watch([])
    await helper.lock(one.pid, LONG)  # to be moved
    await guardian.close()
    assert await helper.state(one.pid, LONG) is State.LOCKED
    await helper.unlock(one.pid, LONG)


async def test_a_start_of_the_guardian_that_is_broken_off_leaves_none(generation: Generation, tmp_path: Path) -> None:
    program = tmp_path / "slow"
    program.write_text("#!/bin/sh\nread -r line\n")
    program.chmod(0o755)
    guardian = Guardian(program, generation)
    start = asyncio.create_task(guardian.watch([]))
    await eventually(lambda: _run_by(program))
    start.cancel()
    await asyncio.wait([start])
    assert not _run_by(program)
    await guardian.close()


@pytest.fixture
def unguarded(card: Card, tmp_path: Path) -> Pair:
    guardian = tmp_path / "guardian"
    guardian.write_text(LETS_NOBODY_GO)
    guardian.chmod(0o755)
    return Pair(card, tmp_path / "lock", guardian)


async def test_at_the_end_who_is_stopped_goes_on_though_another_does_not_answer(
    card: Card, helper: CardHelper, unguarded: Pair
) -> None:
    """By the scheduler itself: the guardian may be killed just then."""
    pair = unguarded
    await pair.begin()
    await eventually(lambda: pair.player.is_stopped("two") and not pair.asked("one"))
    card.order("sim_card_fault", LOCK, HANGS)
    await eventually(lambda: pair.asked("one"))
    await pair.player.close()
    assert await helper.state(pair.programs["two"].pid, LONG) is State.RUNNING
    pair.programs["one"].process.kill()
    await asyncio.gather(*(each.wait() for each in pair.player._card._left))


async def test_one_that_is_just_being_stopped_at_the_end_goes_on_once_it_has_been(
    helper: CardHelper, unguarded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has given to its card takes longer than the scheduler has to end."""
    monkeypatch.setattr(turns, "CLOSING", 0.0)
    pair = unguarded
    for each in pair.programs.values():
        each.run("from tests.support.cuda import Cuda; kept = Cuda(); kept.compute(1000)")
    await pair.player.start({GPU: Mode.TURNS})
    pair.player.join({id_: Terms((GPU,)) for id_ in pair.programs})
    pair.compute()
    calls = pair.player._card
    await eventually(lambda: calls._busy)
    await pair.player.close()
    await asyncio.gather(*(each.wait() for each in calls._left))
    for each in pair.programs.values():
        assert await helper.state(each.pid, LONG) is State.RUNNING


async def test_nobody_is_forgotten_who_is_let_go_while_being_stopped(
    card: Card, helper: CardHelper, tmp_path: Path
) -> None:
    """As where the guardian is gone, and the next one cannot be started: what was asked for first is done last."""
    place = tmp_path / "guardian"
    place.symlink_to(GUARDIAN)
    one, guardian, calls = (
        program(card),
        Guardian(place, Generation(tmp_path / "lock"), card.env()),
        CardHelper(card.env()),
    )
    lost = asyncio.Event()
    guardian.report_loss(lambda why: lost.set())
    await guardian.watch([])
    await calls.prepare(2)
    slow = calls._idle[-1]
    its = Processes("one", calls, guardian, lambda id_: {one.pid})
    os.kill(slow.pid, signal.SIGSTOP)  # it has no processor for a while
    locking = asyncio.create_task(its.lock())
    await eventually(lambda: slow in calls._busy)
    place.unlink()
    assert guardian.pid is not None
    os.kill(guardian.pid, signal.SIGKILL)
    await lost.wait()
    unlocking = asyncio.create_task(its.unlock())
    await asyncio.wait([unlocking], timeout=1.0)  # it may only ever be found not to have waited
    os.kill(slow.pid, signal.SIGCONT)
    await asyncio.gather(locking, unlocking)
    await eventually(lambda: its.locked or slow in calls._idle)
    assert await its.unlock()
    assert await helper.state(one.pid, LONG) is State.RUNNING
    await guardian.close()
    await calls.close()


async def test_one_that_is_found_locked_goes_on_though_the_worker_that_looks_at_it_is_killed(
    card: Card, helper: CardHelper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody of the scheduler before is left; only a start looks for such."""
    died = tmp_path / "died"
    once = f"name.endswith('State') and not os.path.exists({str(died)!r})"
    dies = f"{once} and (open({str(died)!r}, 'w').close(), os.kill(os.getpid(), 9))"
    pair = Pair(card, tmp_path / "lock")
    one = pair.programs["one"]
    await helper.lock(one.pid, LONG)
    monkeypatch.setattr(card_helper, "WORKER", worker(tmp_path, before=dies))
    await pair.player.start({GPU: Mode.SHARED})
    pair.player.join({id_: Terms((GPU,)) for id_ in pair.programs})
    pair.player.release("one")
    assert await all_go_on(helper, one) < LONG
    assert died.exists()
    await pair.player.close()


def _run_by(program: Path) -> list[int]:
    return [pid for pid in children(os.getpid()) if str(program).encode() in command(pid)]
