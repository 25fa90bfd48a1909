"""From Needed to its one answer: granted, rejected or suspended, with idle headroom taken back in between."""

from dataclasses import replace

from scheduler.core.arbiter import handle
from scheduler.core.effects import Effect, Granted, Pressure, Reason, Rejected, Suspended, TakeBack
from scheduler.core.events import ContainerAdded, Event, GpuSeen, Needed, Returned, SessionEnded, SessionOpened
from scheduler.core.state import State


class Card:
    """One GPU "g" of 10 units, and containers with one session each (A → 1, B → 2, …)."""

    def __init__(self, **quotas: int) -> None:
        self.state = State()
        self.do(GpuSeen(0, "g", 10))
        for session, (name, quota) in enumerate(quotas.items(), 1):
            self.do(ContainerAdded(0, name, {"g": quota}))
            self.do(SessionOpened(0, session, name))

    def do(self, event: Event) -> tuple[Effect, ...]:
        self.state, effects = handle(self.state, event)
        return effects


def test_a_call_that_fits_is_granted_at_once():
    card = Card(A=4)
    (granted,) = card.do(Needed(1, 1, 1, "g", 3))
    assert granted == Granted(1, 1, "A", "g", bytes=3, extra=1, waited=0, was_suspended=False)


def test_idle_headroom_is_taken_back_before_anybody_is_suspended():
    card = Card(A=8, B=6)
    assert card.do(Needed(1, 1, 1, "g", 2))[0] == Granted(1, 1, "A", "g", 2, extra=2, waited=0, was_suspended=False)
    assert card.do(Needed(2, 2, 1, "g", 6))[0] == Granted(2, 1, "B", "g", 6, extra=0, waited=0, was_suspended=False)
    assert card.do(Needed(3, 1, 2, "g", 1)) == (Pressure("g", True), TakeBack("g"))
    granted, off = card.do(Returned(3, "g", {1: 1}, all=True))
    assert granted == Granted(1, 2, "A", "g", 1, extra=0, waited=0, was_suspended=False)
    assert off == Pressure("g", False)


def test_a_call_that_is_granted_at_once_leaves_the_queue_of_the_others_as_it_was():
    """The same object: for a new one each of those who wait was shown anew, at each call of somebody else."""
    card = Card(A=8, B=8)
    card.do(Needed(1, 1, 1, "g", 5))
    card.do(Needed(2, 2, 1, "g", 6))
    card.do(Returned(2, "g", {1: 2}, all=True))
    before = card.state.waiting
    assert [request.container for request in before] == ["B"]
    assert isinstance(card.do(Needed(3, 1, 2, "g", 1))[0], Granted)
    assert card.state.waiting is before
    card.do(SessionEnded(4, 1))
    assert card.state.waiting == ()


def test_a_container_is_suspended_and_resumes_when_memory_comes_back():
    card = Card(A=8, B=8)
    card.do(Needed(1, 1, 1, "g", 8))
    card.do(Needed(2, 2, 1, "g", 6))
    assert card.do(Returned(2, "g", {}, all=True)) == (Suspended(2, 1, "B", "g", 6),)
    granted, off = card.do(SessionEnded(9, 1))
    assert granted == Granted(2, 1, "B", "g", bytes=6, extra=2, waited=7, was_suspended=True)
    assert off == Pressure("g", False)


def test_a_call_beyond_the_quota_is_rejected_at_once():
    card = Card(A=4)
    (rejected,) = card.do(Needed(1, 1, 1, "g", 5))
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.OVER_QUOTA


def test_what_its_own_container_cannot_hold_is_rejected_without_a_look_at_others():
    """A program asked so a thousand times a second, and each time all leases of the card were looked at."""
    card = Card(A=8, B=6)
    card.do(Needed(1, 1, 1, "g", 3))
    card.do(Returned(1, "g", {1: 3}))
    assert card.do(Needed(1, 1, 2, "g", 5, collected=True))[0] == Granted(1, 2, "A", "g", 5, 0, 0, was_suspended=False)
    before = card.state
    (rejected,) = card.do(Needed(2, 1, 3, "g", 1, collected=True))
    assert isinstance(rejected, Rejected)
    assert rejected.reason is Reason.OVER_QUOTA
    assert replace(card.state, now=before.now) == before
    assert Suspended(2, 1, "B", "g", 3) in [
        *card.do(Needed(3, 2, 1, "g", 3, collected=True)), *card.do(Returned(3, "g", {}, all=True)),
    ]  # fmt: skip


def test_two_halves_that_both_want_more_never_come_about():
    card = Card(A=8, B=8)
    card.do(Needed(1, 1, 1, "g", 4))
    card.do(Needed(2, 2, 1, "g", 4))
    assert card.do(Returned(2, "g", {1: 4}, all=True)) == (Suspended(2, 1, "B", "g", 4),)
