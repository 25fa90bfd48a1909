"""Whoever stops a process for a turn may die at any moment, and so may any two of the three that know of it."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from scheduler.card.generation import Generation
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardError, CardHelper, State
from scheduler.card.processes import LOCK_WITHIN
from tests.support.card import BUILD, Card
from tests.support.eventually import eventually, until
from tests.support.program import Program
from tests.support.running import ended

LONG = 30.0
SOON = LOCK_WITHIN - 1  # seconds in which everybody goes on: at once, also on a busy machine, and by no deadline
PARTS = ("scheduler", "helper", "guardian")
GUARDIAN = BUILD / "guardian"


def program(card: Card) -> Program:
    program = Program(card, card.env())
    program("cuInit", 0)
    program("cuCtxSetCurrent", program.new("cuDevicePrimaryCtxRetain", 0))
    return program


class Stopper:
    """stopper.py, which has stopped these processes. `pids`: of scheduler, helper and guardian."""

    def __init__(self, card: Card, *programs: Program) -> None:
        words = [sys.executable, "-m", "tests.card.stopper", str(GUARDIAN), str(card.path.with_name("lock"))]
        self.process = card.popen([*words, *(str(each.pid) for each in programs)], stdin=-1, stdout=-1)
        assert self.process.stdout is not None
        guardian, *workers = map(int, self.process.stdout.readline().split())
        self.pids = {"scheduler": [self.process.pid], "helper": workers, "guardian": [guardian]}

    def kill(self, *parts: str) -> None:
        for part in parts:
            for pid in self.pids[part]:
                os.kill(pid, signal.SIGKILL)


async def runs(helper: CardHelper, pid: int) -> bool:
    return await helper.state(pid, LONG) is State.RUNNING


async def all_go_on(helper: CardHelper, *programs: Program) -> float:
    """Seconds until none is locked."""
    begun = time.monotonic()
    for each in programs:
        await eventually(lambda pid=each.pid: runs(helper, pid), LONG)
    return time.monotonic() - begun


@contextlib.contextmanager
def following(generation: Generation, lock: Path) -> Iterator[Generation]:
    """The next one, once the scheduler of this one is gone."""
    next_one = Generation(lock)
    os.dup2(os.open(os.devnull, os.O_RDONLY), generation.fd)  # its own descriptor is closed, as by its end
    yield next_one
    next_one.close()


@pytest.mark.parametrize(
    "killed", [those for size in (1, 2) for those in combinations(PARTS, size) if "scheduler" in those], ids="+".join
)
async def test_all_go_on_when_who_stopped_them_is_killed(card: Card, helper: CardHelper, killed: list[str]) -> None:
    programs = [program(card) for _ in range(3)]
    stopper = Stopper(card, *programs)
    assert [await helper.state(each.pid, LONG) for each in programs] == [State.LOCKED] * 3
    stopper.kill(*killed)
    assert await all_go_on(helper, *programs) < SOON
    until(lambda: all(ended(pid) for pids in stopper.pids.values() for pid in pids))


async def test_a_guardian_and_a_helper_that_are_killed_leave_it_to_the_scheduler(
    card: Card,
    helper: CardHelper,
) -> None:
    one = program(card)
    stopper = Stopper(card, one)
    stopper.kill("helper", "guardian")
    assert await helper.state(one.pid, LONG) is State.LOCKED
    assert stopper.process.communicate("go on\n", LONG)[0] == "all go on\n"
    assert await helper.state(one.pid, LONG) is State.RUNNING


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
async def test_one_that_is_killed_or_stands_still_is_followed_by_one_that_knows_everybody(
    card: Card, helper: CardHelper, generation: Generation, number: signal.Signals
) -> None:
    """Though nobody tells it anything."""
    one = program(card)
    guardian = Guardian(GUARDIAN, generation, card.env())
    await guardian.watch([one.pid])
    first = guardian.pid
    assert first is not None
    await helper.stop(one.pid, LONG)
    os.kill(first, number)
    await eventually(lambda: guardian.pid not in (None, first))
    assert ended(first)
    await guardian.watch([one.pid])  # it is ready
    await guardian.close()
    assert await all_go_on(helper, one) < SOON


async def test_the_next_one_knows_who_was_locked_before_it_began(
    card: Card, helper: CardHelper, generation: Generation, tmp_path: Path
) -> None:
    one = program(card)
    guardian = Guardian(GUARDIAN, generation, card.env())
    await guardian.watch([one.pid])
    first = guardian.pid
    assert first is not None
    await helper.stop(one.pid, LONG)
    guardian.locked([one.pid])
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: guardian.pid not in (None, first))
    await guardian.watch([])  # it is ready
    await helper.unlock(one.pid, LONG)
    begun = time.monotonic()
    await guardian.close()
    with following(generation, tmp_path / "lock") as next_one:
        await next_one.alone()
    assert time.monotonic() - begun < SOON


async def test_a_lock_that_is_done_only_after_the_scheduler_is_gone_is_undone_too(
    card: Card,
    helper: CardHelper,
    generation: Generation,
) -> None:
    one = program(card)
    guardian = Guardian(GUARDIAN, generation, card.env())
    await guardian.watch([one.pid])
    await guardian.close()
    await helper.lock(one.pid, LONG)  # a worker that was asked by who is gone, and killed itself
    assert await all_go_on(helper, one) < SOON


async def test_one_that_is_frozen_holds_up_nobody_else_and_goes_on_when_it_is_thawed(
    card: Card,
    helper: CardHelper,
) -> None:
    frozen, other = program(card), program(card)
    stopper = Stopper(card, frozen, other)
    os.kill(frozen.pid, signal.SIGSTOP)
    stopper.kill("scheduler", "helper")
    assert await all_go_on(helper, other) < SOON
    os.kill(frozen.pid, signal.SIGCONT)
    assert await all_go_on(helper, frozen) < SOON


async def test_no_signal_but_sigkill_ends_a_guardian_and_the_next_scheduler_waits_for_it(
    card: Card, generation: Generation, tmp_path: Path
) -> None:
    await generation.alone()
    guardian = card.popen([str(GUARDIAN), str(generation.fd)], stdin=-1, stdout=-1, pass_fds=[generation.fd])
    assert guardian.stdout is not None
    assert guardian.stdout.readline() == "ready\n"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guardian.send_signal(number)
    with following(generation, tmp_path / "lock") as next_one:
        waiting = asyncio.create_task(next_one.alone())
        assert not (await asyncio.wait([waiting], timeout=0.2))[0]
        assert guardian.communicate("", LONG) == ("", None)
        assert guardian.returncode == 0
        await asyncio.wait_for(waiting, LONG)


async def test_the_next_scheduler_locks_nobody_whom_the_last_one_may_still_let_go(
    card: Card, generation: Generation, tmp_path: Path
) -> None:
    """It is about to move its memory: who goes on within that does not survive it."""
    one = program(card)
    await generation.alone()
    guardian = Guardian(GUARDIAN, generation, card.env())
    await guardian.watch([one.pid])  # and the scheduler is gone, before it has asked for the lock or has seen its end
    leaving = asyncio.create_task(guardian.close())
    with following(generation, tmp_path / "lock") as next_one:
        helper = CardHelper(card.env(), next_one)
        await helper.lock(one.pid, LONG)
        until(lambda: guardian.pid is None)
        await asyncio.sleep(0.1)  # a look of the guardian's is 3 ms
        assert await helper.state(one.pid, LONG) is State.LOCKED
        assert (await helper.checkpoint(one.pid, LONG)).state is State.CHECKPOINTED
        await helper.restore(one.pid, LONG)
        await helper.unlock(one.pid, LONG)
        await leaving
        await helper.close()


async def test_one_that_hangs_is_not_waited_for_for_ever(
    generation: Generation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await generation.alone()
    monkeypatch.setattr("scheduler.card.generation.LONGEST", 0.1)
    next_one = Generation(tmp_path / "lock")
    await next_one.alone()
    next_one.close()
    assert "waited for no longer" in caplog.text


async def test_without_the_drivers_calls_there_is_none_and_it_says_so(generation: Generation, tmp_path: Path) -> None:
    guardian = Guardian(GUARDIAN, generation, {"LD_LIBRARY_PATH": str(tmp_path)})
    with pytest.raises(CardError, match=r"The guardian cannot be started: .*libcuda"):
        await guardian.watch([1])


async def test_once_it_is_closed_none_begins_who_would_be_left(card: Card, generation: Generation) -> None:
    guardian = Guardian(GUARDIAN, generation, card.env())
    await guardian.close()
    with pytest.raises(CardError, match="ending"):
        await guardian.watch([os.getpid()])
    assert guardian.pid is None


SLOW = """#!/bin/sh
# Notes who is named on each line once there is a file of that name, and answers then.
echo ready
while read -r line; do
    case $line in +*) until [ -e "${0%/*}/$line" ]; do sleep 0.02; done; printf x ;; esac
done
"""


async def test_whoever_watches_after_one_that_was_called_off_is_answered_for_their_own(
    generation: Generation, tmp_path: Path
) -> None:
    program = tmp_path / "slow"
    program.write_text(SLOW)
    program.chmod(0o755)
    guardian = Guardian(program, generation)
    await guardian.watch([])
    first = asyncio.create_task(guardian.watch([1]))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(first, 0.2)
    second = asyncio.create_task(guardian.watch([2]))
    (tmp_path / "+1").touch()
    done, _ = await asyncio.wait({second}, timeout=0.5)
    assert not done  # the answer that came was for the first
    (tmp_path / "+2").touch()
    await asyncio.wait_for(second, LONG)
    await guardian.close()
