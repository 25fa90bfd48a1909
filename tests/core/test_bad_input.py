"""Whatever comes in: a defined answer, no exception, and the state as it was."""

from math import inf, nan

import pytest

from scheduler.core.arbiter import handle
from scheduler.core.effects import Admitted, Reason, Refused, Rejected
from scheduler.core.events import (
    ContainerAdded,
    ContainerEnded,
    ContainerKilled,
    ContainerPaused,
    ContainerResumed,
    GpuSeen,
    Needed,
    OverheadMeasured,
    PolicyChanged,
    PriorityChanged,
    QuotaChanged,
    Reordered,
    Returned,
    SessionEnded,
    SessionOpened,
    Ticked,
)
from scheduler.core.invariants import violations
from scheduler.core.state import State
from tests.support.world import Process, World


@pytest.fixture
def world() -> World:
    """One GPU "g" of 10; A (quota 6, session 1) holds 4, B (quota 8, session 2) waits for 8."""
    made = World()
    made.do(GpuSeen(0, "g", 10))
    for session, (name, quota) in enumerate({"A": 6, "B": 8}.items(), 1):
        made.do(ContainerAdded(0, name, {"g": quota}))
        made.do(SessionOpened(0, session, name))
        made.processes[session] = Process(name)
    made.need(1, 1, "g", 4, 1)
    made.need(2, 1, "g", 8, 2)
    assert [request.container for request in made.state.waiting] == ["B"]
    return made


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (PolicyChanged(3, "nosuch"), Reason.UNKNOWN),
        (PriorityChanged(3, "A", 101), Reason.INVALID),
        (PriorityChanged(3, "A", -101), Reason.INVALID),
        (PriorityChanged(3, "nobody", 1), Reason.UNKNOWN),
        (QuotaChanged(3, "nobody", {"g": 1}), Reason.UNKNOWN),
        (QuotaChanged(3, "A", {"h": 1}), Reason.INVALID),
        (QuotaChanged(3, "A", {"g": 0}), Reason.INVALID),
        (QuotaChanged(3, "A", {"g": 3}), Reason.INVALID),  # below what it uses
        (QuotaChanged(3, "A", {"g": 11}), Reason.OVER_CAPACITY),
        (ContainerAdded(3, "C", {}), Reason.INVALID),
        (ContainerAdded(3, "C", {"g": -1}), Reason.INVALID),
        (ContainerAdded(3, "C", {"g": 11}), Reason.OVER_CAPACITY),
        (ContainerAdded(3, "C", {"nosuch": 1}), Reason.UNKNOWN),
        (ContainerAdded(3, "C", {"g": 1}, priority=1000), Reason.INVALID),
        (ContainerAdded(3, "C", {"g": 1}, max_wait=nan), Reason.INVALID),
        (ContainerAdded(3, "C", {"g": 1}, max_wait=-1.0), Reason.INVALID),
        (ContainerAdded(3, "A", {"g": 5}), Reason.INVALID),  # here already, with another quota
        (ContainerAdded(3, "C", {"g": 7}, guaranteed=True), Reason.SHORTAGE),
        (SessionOpened(3, 9, "nobody"), Reason.UNKNOWN),
        (SessionOpened(3, 1, "B"), Reason.INVALID),
    ],
)
def test_it_is_refused_with_a_reason_and_changes_nothing(world, event, reason):
    before = world.state
    (refused,) = [effect for effect in world.do(event) if isinstance(effect, Refused)]
    assert refused.reason is reason
    assert refused.explanation
    after = world.state
    assert (after.containers, after.sessions, after.policy) == (before.containers, before.sessions, before.policy)
    assert [(r.session, r.serial) for r in after.waiting] == [(2, 1)]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Needed(3, 99, 1, "g", 1), Reason.UNKNOWN),
        (Needed(3, 1, 7, "nosuch", 1), Reason.UNKNOWN),
        (Needed(3, 1, 7, "g", 0), Reason.INVALID),
        (Needed(3, 1, 7, "g", -5), Reason.INVALID),
        (Needed(3, 1, 7, "g", 2**64), Reason.OVER_QUOTA),
    ],
)
def test_a_call_that_makes_no_sense_is_rejected(world, event, reason):
    (rejected,) = handle(world.state, event)[1]
    assert isinstance(rejected, Rejected)
    assert rejected.reason is reason


@pytest.mark.parametrize(
    "event",
    [
        ContainerPaused(3, "nobody"),
        ContainerResumed(3, "nobody"),
        ContainerResumed(3, "A"),
        ContainerKilled(3, "nobody"),
        ContainerEnded(3, "nobody"),
        SessionEnded(3, 99),
        SessionOpened(3, 1, "A"),
        Needed(3, 2, 1, "g", 8),  # waits already
        Returned(3, "nosuch", {1: 1}),
        Returned(3, "g", {99: 1, 1: 0, 2: -4}),
        OverheadMeasured(3, 99, "g", 1),
        OverheadMeasured(3, 1, "nosuch", 1),
        Reordered(3, ("nobody", "nobody")),
        Ticked(3),
    ],
)
def test_what_is_unknown_or_repeated_changes_nothing(world, event):
    before = world.state
    world.state, effects = handle(before, event)
    world.check()
    assert effects == ()
    for part in ("gpus", "containers", "sessions", "waiting", "pressed"):
        assert getattr(world.state, part) == getattr(before, part)


@pytest.mark.parametrize("now", [-1.0, 0.0, nan, inf, -inf])
def test_time_never_goes_back_and_never_to_nowhere(world, now):
    world.do(Ticked(5.0))
    world.do(Ticked(now))
    assert world.state.now == 5.0


def test_a_launch_said_twice_is_admitted_twice_and_there_once(world):
    assert world.do(ContainerAdded(3, "A", {"g": 6})) == [Admitted("A")]
    assert list(world.state.containers) == ["A", "B"]


def test_a_call_of_an_ended_container_is_rejected(world):
    del world.processes[2]
    world.do(ContainerEnded(3, "B"))
    (rejected,) = handle(world.state, Needed(4, 2, 2, "g", 1))[1]
    assert rejected.reason is Reason.UNKNOWN


def test_more_is_returned_than_was_ever_leased(world):
    world.processes[1].used["g"] = 0
    world.do(Returned(3, "g", {1: 1000}))
    assert world.state.containers["A"].leased == {}


def test_a_page_that_shows_more_than_the_quota_is_clamped():
    state, _ = handle(State(), GpuSeen(0, "g", 10), ContainerAdded(0, "A", {"g": 4}, running=True))
    state, _ = handle(state, SessionOpened(0, 1, "A", leased={"g": 9, "nosuch": 3}))
    assert state.containers["A"].leased == {"g": 4}


def test_memory_given_back_to_a_card_that_foreign_memory_has_shrunk(world):
    """Who has all of its quota can end; with a part given back to what is lacking it cannot."""
    del world.processes[2]
    world.do(ContainerEnded(2, "B"))
    world.need(1, 2, "g", 2, 2)
    world.do(GpuSeen(3, "g", 1, most=10))
    world.processes[1].used["g"] -= 1
    world.do(Returned(3, "g", {1: 1}))
    assert not world.state.calm


def test_a_container_that_starts_paused_cannot_end(world):
    world.do(ContainerAdded(3, "C", {"g": 1}, paused=True))
    assert not world.state.calm


def test_a_guarantee_that_is_found_running_may_be_more_than_there_is():
    state, _ = handle(State(), GpuSeen(0, "g", 8), ContainerAdded(0, "A", {"g": 6}), SessionOpened(0, 1, "A"))
    state, _ = handle(state, Needed(1, 1, 1, "g", 6))
    state, _ = handle(state, ContainerAdded(2, "B", {"g": 6}, guaranteed=True, running=True))
    assert not state.calm
    assert violations(state) == []
