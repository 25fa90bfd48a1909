"""One whose memory gave way before anybody knew how it waits while it is idle may want to compute."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.core.events import ActivityDetected
from scheduler.monitors.activity import Activity, Habits, Look


@pytest.fixture
def live() -> Any:
    session = SimpleNamespace(id=1, pid=os.getpid(), ended=False)
    return SimpleNamespace(id="c", sessions={1: session}, swap="", is_out=False, gave_way="", paused=False,
                           finished=False)  # fmt: skip


@pytest.fixture
def reported() -> list[Any]:
    return []


@pytest.fixture
def activity(tmp_path: Path, live: Any, reported: list[Any]) -> Activity:
    state = SimpleNamespace(containers={"c": SimpleNamespace(idle_since=0.0)})
    broker: Any = SimpleNamespace(live_containers={"c": live}, state=state, now=lambda: 5.0, tell=reported.append)
    return Activity(broker, tmp_path)


@pytest.mark.parametrize("looked", ["leaving", "out"])
async def test_who_gave_way_and_is_a_stranger_is_taken_to_stir(
    activity: Activity, live: Any, reported: list[Any], looked: str
) -> None:
    """Also if it was on its way out at the first look. It may have been asked to compute just then."""
    if looked == "leaving":
        live.swap = "leaving"
        await activity.look()
        assert reported == []
    live.swap, live.is_out, live.gave_way = "out", True, "idle"
    await activity.look()
    assert reported == [ActivityDetected(5.0, "c")]


async def test_whom_a_person_paused_is_not_brought_back_before_it_is_frozen(
    activity: Activity, live: Any, reported: list[Any]
) -> None:
    """A scheduler was killed between the move and the freeze: to the next one its program is a stranger, and runs."""
    live.swap, live.is_out = "out", True
    until = time.process_time() + 0.02  # more than a program that is idle ever uses
    await activity.look()
    while time.process_time() < until:
        pass
    await activity.look()
    assert reported == []


def test_who_ran_at_every_look_while_idle_stirs_when_it_blocks() -> None:
    """One that polls may run whenever it is looked at. Where it is first seen to wait is then no place of idleness."""
    runs = Look(0.0, {2: (("poll", "0x3", "0x7f00"), 1)}, frozenset({1, 2}))
    blocked = Look(0.0, {**runs.waits, 1: (("futex", "0x7f10", "0x7f20"), 5)}, runs.threads)
    habits = Habits(runs)
    habits.learn(runs)
    habits.skip(runs)
    assert [habits.note(blocked) for _ in range(5)] == [False, False, False, True, True]
