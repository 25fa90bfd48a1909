"""A container whose memory has left its card holds nothing there; what it had comes back by the rules for newcomers."""

from dataclasses import replace

import pytest

from benchmarks.simulation.exploring.explorer import explore
from benchmarks.simulation.exploring.keys import Host
from scheduler.core.effects import Granted, Reason, Refused, Rejected, Restore, Suspended, TakeBack
from scheduler.core.events import (
    CameBack,
    ContainerAdded,
    ContainerEnded,
    ContainerKilled,
    ContainerPaused,
    ContainerResumed,
    GpuSeen,
    MoveBegun,
    Needed,
    NotMoved,
    OverheadMeasured,
    QuotaChanged,
    Returned,
    SessionEnded,
    SessionOpened,
    SwapInRequested,
    SwappedOut,
    Ticked,
)
from scheduler.core.invariants import violations
from scheduler.core.safety import completable, free
from tests.core.test_a_calls_life import Card


def swapped(**quotas: int) -> Card:
    """A (session 1) has used 6 of its quota and is out."""
    card = Card(**quotas)
    card.do(Needed(1, 1, 1, "g", 6))
    card.do(Returned(1, "g", {1: card.state.sessions[1].leased["g"] - 6}))
    card.do(SwappedOut(2, "A"))
    return card


def test_what_it_had_is_everybodys():
    card = swapped(A=6, B=10)
    assert free(card.state, "g") == 10
    (granted,) = [effect for effect in card.do(Needed(3, 2, 1, "g", 10)) if isinstance(effect, Granted)]
    assert granted.container == "B"


def test_it_comes_back_at_once_where_there_is_room():
    card = swapped(A=6, B=4)
    effects = card.do(SwapInRequested(3, "A"))
    assert [type(effect) for effect in effects] == [Granted, Restore]
    assert card.state.containers["A"].leased == {"g": 6}
    assert card.state.containers["A"].out == {}


def test_it_waits_for_room_as_others_do_and_nothing_is_lent_twice():
    card = swapped(A=6, B=10)
    card.do(Needed(3, 2, 1, "g", 10))
    assert any(isinstance(effect, Suspended) for effect in wait(card, SwapInRequested(4, "A")))
    assert not any(isinstance(effect, Restore) for effect in card.do(SwapInRequested(5, "A")))
    effects = card.do(SessionEnded(6, 2))
    assert [type(effect) for effect in effects][-1] is Restore
    assert violations(card.state) == []


def wait(card: Card, event):
    """Answers TakeBack: nobody has idle headroom."""
    effects = list(card.do(event))
    for effect in effects:
        if isinstance(effect, TakeBack):
            effects += card.do(Returned(event.now, effect.gpu, {}, all=True))
    return effects


def test_neither_patience_nor_shortage_ends_its_wait():
    card = Card(B=10)
    card.do(ContainerAdded(0, "A", {"g": 6}, fail_fast=True, max_wait=5.0))
    card.do(SessionOpened(0, 9, "A"))
    card.do(Needed(1, 9, 1, "g", 6))
    card.do(SwappedOut(2, "A"))
    card.do(Needed(3, 1, 1, "g", 10))
    wait(card, SwapInRequested(4, "A"))
    card.do(Ticked(400))
    assert [request.container for request in card.state.waiting] == ["A"]


def test_a_kill_ends_its_wait_and_its_end_gives_nothing_back_twice():
    card = swapped(A=6, B=10)
    card.do(Needed(3, 2, 1, "g", 10))
    wait(card, SwapInRequested(4, "A"))
    (rejected,) = [effect for effect in card.do(ContainerKilled(5, "A")) if isinstance(effect, Rejected)]
    assert rejected.reason is Reason.KILLED
    card.do(SessionEnded(6, 1))
    card.do(ContainerEnded(7, "A"))
    assert card.state.gpus["g"].held == 10
    assert violations(card.state) == []


def test_what_is_called_off_on_its_way_back_is_out_again():
    card = swapped(A=6, B=4)
    card.do(SwapInRequested(3, "A"))
    card.do(SwappedOut(4, "A"))
    assert card.state.containers["A"].out == {"g": 6}
    assert free(card.state, "g") == 10


def test_a_process_that_ends_while_out_is_not_waited_for():
    card = Card(A=6, B=6)
    card.do(SessionOpened(0, 9, "A"))
    card.do(Needed(1, 1, 1, "g", 3))
    card.do(Needed(1, 9, 1, "g", 3))
    card.do(SwappedOut(2, "A"))
    wait(card, Needed(3, 2, 1, "g", 6))
    card.do(SessionEnded(4, 9))
    assert card.state.containers["A"].out == card.state.sessions[1].out != {}
    assert isinstance(card.do(SwapInRequested(5, "A"))[-1], Restore)


def test_with_nothing_left_to_bring_it_is_reported_at_once():
    card = swapped(A=6)
    assert card.do(SessionEnded(3, 1))[-1] == Restore("A")


def test_a_paused_one_is_given_nothing_before_it_goes_on():
    card = swapped(A=6, B=4)
    card.do(ContainerPaused(3, "A"))
    wait(card, SwapInRequested(4, "A"))
    assert card.state.containers["A"].leased == {}
    assert isinstance(card.do(ContainerResumed(5, "A"))[-1], Restore)


def test_a_quota_below_what_is_out_is_refused():
    card = swapped(A=6)
    (refused,) = [effect for effect in wait(card, QuotaChanged(3, "A", {"g": 5})) if isinstance(effect, Refused)]
    assert "holds 6 bytes" in refused.explanation


def test_its_own_calls_count_what_is_out():
    """A thread that asks while the driver is locked: not beyond the quota, though nothing is held."""
    card = swapped(A=8)
    card.do(ContainerPaused(2, "A"))
    effects = wait(card, Needed(3, 1, 2, "g", 3))
    assert [effect.reason for effect in effects if isinstance(effect, Rejected)] == [Reason.OVER_QUOTA]
    assert not any(isinstance(effect, Granted) for effect in wait(card, Needed(4, 1, 3, "g", 2)))
    effects = [*wait(card, ContainerResumed(5, "A")), *wait(card, CameBack(6, "A"))]
    assert [effect.bytes for effect in effects if isinstance(effect, Granted)] == [6, 2]
    assert Restore("A") in effects
    assert card.state.containers["A"].leased == {"g": 8}


def test_who_has_nothing_left_when_it_is_out_is_back_at_once():
    """Else what another of its processes is granted would be thought of as in host memory, for ever."""
    card = Card(A=6, B=4)
    card.do(SessionOpened(0, 9, "A"))
    card.do(Needed(1, 1, 1, "g", 6))
    card.do(SessionEnded(2, 1))
    assert card.do(SwappedOut(3, "A")) == (Restore("A"),)
    assert not any(isinstance(effect, Granted) for effect in wait(card, Needed(4, 9, 1, "g", 1)))
    effects = wait(card, CameBack(5, "A"))
    assert [effect.session for effect in effects if isinstance(effect, Granted)] == [9]


def test_another_of_its_processes_gets_nothing_before_all_is_back():
    """Else it would hold something where everybody thinks that all of it is out."""
    card = Card(A=8)
    card.do(SessionOpened(0, 9, "A"))
    card.do(Needed(1, 1, 1, "g", 3))
    card.do(ContainerPaused(2, "A"))
    card.do(SwappedOut(2, "A"))
    assert not any(isinstance(effect, Granted) for effect in wait(card, Needed(3, 9, 1, "g", 1)))
    effects = wait(card, ContainerResumed(4, "A"))
    assert [effect.session for effect in effects if isinstance(effect, Granted)] == [1]
    effects = wait(card, CameBack(5, "A"))
    assert [effect.session for effect in effects if isinstance(effect, Granted)] == [9]


def test_what_has_grown_past_the_quota_comes_back_all_the_same():
    card = Card(A=6, B=4)
    card.do(Needed(1, 1, 1, "g", 6))
    card.do(OverheadMeasured(1, 1, "g", 1))
    card.do(SwappedOut(2, "A"))
    assert isinstance(card.do(SwapInRequested(3, "A"))[-1], Restore)
    assert card.state.containers["A"].leased == {"g": 7}


def test_who_has_more_out_than_its_quota_has_room_for_cannot_end_without_room_for_it():
    """What another of its processes was found to hold counts besides; then foreign memory takes the whole card."""
    card = swapped(A=8, B=1)
    card.do(SessionOpened(2, 9, "A"))
    card.do(OverheadMeasured(3, 9, "g", 8))
    card.do(GpuSeen(4, "g", 0))
    wait(card, SwapInRequested(5, "A"))
    assert violations(card.state) == []
    assert "A" not in completable(card.state, ["g"])


def test_who_is_unknown_is_no_matter():
    card = Card(A=6)
    assert card.do(SwappedOut(1, "X")) == ()
    assert card.do(SwapInRequested(1, "X")) == ()
    assert card.do(SwapInRequested(float("nan"), "A")) == ()


@pytest.mark.parametrize("policy", ["fair", "fifo", "best-fit"])
def test_no_state_of_a_small_host_is_broken_by_swapping(policy):
    host = Host(2, ((2,), (2,)), policy, pauses=True)
    assert explore(replace(host, swaps=True)) > 2 * explore(host)


def test_two_gpus_and_swapping_break_nothing():
    host = Host(2, ((2, 1), (1, 2)), "fifo")
    assert explore(replace(host, swaps=True)) > 2 * explore(host)


def test_one_that_is_being_moved_is_lent_nothing_and_is_not_rejected_for_shortage():
    """Whoever has it moved; a person's is paused besides, from the start."""
    card = Card(B=10)
    card.do(ContainerAdded(0, "A", {"g": 4}, fail_fast=True))
    card.do(SessionOpened(0, 9, "A"))
    card.do(Needed(1, 9, 1, "g", 1))
    card.do(MoveBegun(2, "A"))
    effects = wait(card, Needed(3, 9, 2, "g", 2)) + wait(card, ContainerPaused(4, "A"))
    assert not any(isinstance(effect, Granted | Rejected) for effect in effects)
    card.do(NotMoved(5, "A"))
    (granted,) = [effect for effect in wait(card, ContainerResumed(6, "A")) if isinstance(effect, Granted)]
    assert granted.bytes == 2
