"""Two things at once, and something that dies or stands still between any two steps of a turn."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.card.generation import Generation
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardError, CardHelper, State
from scheduler.card.turns import Seen, Terms, TurnPlayer
from scheduler.core.turns import Mode, Rules
from tests.card.test_guardian import GUARDIAN, LONG, all_go_on, ended, program
from tests.support.card import Card
from tests.support.eventually import eventually

GPU = "GPU-0"


class Pair:
    """Two containers of a process each, which always compute."""

    def __init__(self, card: Card, lock: Path, guardian: Path = GUARDIAN) -> None:
        self.programs = {"one": program(card), "two": program(card)}
        self.guardian = Guardian(guardian, Generation(lock), card.env())
        self.player = TurnPlayer(CardHelper(card.env()), self.guardian, Rules(cycle=0.4))
        self.player.pids = lambda id_: {self.programs[id_].pid}
        self.told: list[tuple[str, str]] = []
        self.player.told = lambda id_, why: self.told.append((id_, why))

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
        return part.task is not None and bool(part.processes.locked)


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
    await eventually(lambda: pair.player._parts["one"].task is None)
    pair.player.see({"one": Seen(), "two": Seen((GPU,))})
    os.kill(one.pid, signal.SIGCONT)
    pair.player.bar("one", "state", on=False)
    await eventually(pair.player._parts["one"].quiet.is_set, LONG)
    assert await all_go_on(helper, one) < LONG


async def test_a_fault_of_ours_at_one_turn_holds_up_nobody(pair: Pair, helper: CardHelper) -> None:
    await eventually(lambda: pair.player.is_stopped("two") and not pair.asked("one"))
    pids = pair.player.pids

    def once(id_: str) -> set[int]:
        pair.player.pids = pids
        raise RuntimeError(id_)

    pair.player.pids = once
    await eventually(lambda: pair.told, LONG)
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
    await eventually(lambda: pair.told, LONG)
    assert await all_go_on(helper, *pair.programs.values()) < LONG
    assert "The guardian cannot be started" in pair.told[0][1]
    await pair.player.close()


async def test_whom_the_guardian_was_never_told_of_it_does_not_unlock(
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


def _run_by(program: Path) -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [
        pid for pid in map(int, children)
        if not ended(pid) and str(program).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip
