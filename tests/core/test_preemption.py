"""Who holds memory gives way to who waits: whom, when, and when not (`core/moves/preemption.py`)."""

from dataclasses import replace
from math import inf, nan

import pytest

from scheduler.core.arbiter import handle
from scheduler.core.effects import Granted, Preempt, Reason, Refused, Rejected, Restore, TakeBack
from scheduler.core.events import (
    ActivityDetected,
    CameBack,
    ContainerAdded,
    ContainerEnded,
    ContainerPaused,
    ContainerResumed,
    GpuSeen,
    Idle,
    Needed,
    NotMoved,
    PreemptionChanged,
    Returned,
    SessionEnded,
    SessionOpened,
    SwappedOut,
    Ticked,
)
from scheduler.core.invariants import violations
from scheduler.core.state import Mode, Preemption, Stage, State

IDLE = Preemption(Mode.IDLE, idle=100.0, rotate=1000.0, out=10, back=10, least=0)
ROTATE = replace(IDLE, mode=Mode.ROTATE)


class Card:
    """One GPU `g` of 10 bytes; each container has one session, of the same name, and uses all that it asked for."""

    def __init__(self, rule: Preemption = IDLE, policy: str = "fair") -> None:
        self.state = State(policy=policy)
        self.do(GpuSeen(0.0, "g", 10))
        self.do(PreemptionChanged(0.0, rule))

    def do(self, event) -> list:
        """Answers TakeBack: nobody has idle headroom."""
        self.state, effects = handle(self.state, event)
        assert violations(self.state) == []
        done = list(effects)
        for effect in effects:
            if isinstance(effect, TakeBack):
                done += self.do(Returned(event.now, effect.gpu, {}, all=True))
        return done

    def start(self, name: int, amount: int, now: float = 0.0, **how) -> list:
        quota = how.pop("quota", amount)
        self.do(ContainerAdded(now, str(name), {"g": quota}, **how))
        self.do(SessionOpened(now, name, str(name)))
        effects = self.do(Needed(now, name, 1, "g", amount))
        for granted in effects:
            if isinstance(granted, Granted) and granted.extra:
                self.do(Returned(now, "g", {name: granted.extra}))
        return effects

    def idle(self, *names: int, since: float = 0.0) -> None:
        for name in names:
            self.do(Idle(self.state.now, str(name), since))

    def tick(self, now: float) -> list:
        return [effect for effect in self.do(Ticked(now)) if isinstance(effect, Preempt)]

    def is_out(self, name: int, now: float) -> list:
        return [each for each in self.do(SwappedOut(now, str(name))) if isinstance(each, Preempt | Granted | Restore)]

    def out(self) -> list[str]:
        return [name for name, each in self.state.containers.items() if each.out]


def test_an_idle_holder_gives_way_to_who_waits():
    card = Card()
    card.start(1, 8)
    card.idle(1)
    card.start(2, 5)
    assert card.tick(99) == []
    assert card.tick(100) == [Preempt("1", "2", Mode.IDLE)]
    assert card.tick(101) == []
    (granted,) = card.is_out(1, 103)
    assert granted.container == "2"


def test_nobody_gives_way_where_nobody_waits_or_it_is_off():
    card = Card()
    card.start(1, 8)
    card.idle(1)
    assert card.tick(200) == []
    card.do(PreemptionChanged(200, Preemption()))
    card.start(2, 5, 200)
    assert card.tick(300) == []


def test_it_sleeps_until_it_stirs_and_then_waits_like_any_other():
    card = Card()
    card.start(1, 8)
    card.idle(1)
    card.start(2, 5)
    card.tick(100)
    card.is_out(1, 103)
    assert card.tick(200) == []
    assert not any(isinstance(effect, Restore) for effect in card.do(ActivityDetected(201, "1")))
    assert card.state.containers["1"].stage is Stage.RETURNING
    assert Restore("1") in card.do(ContainerEnded(210, "2"))


def test_a_call_stirs_it_too():
    card = Card()
    card.start(1, 6, quota=8)
    card.idle(1)
    card.start(2, 5)
    card.tick(100)
    card.is_out(1, 103)
    card.do(Needed(110, 1, 2, "g", 1))
    assert card.state.containers["1"].stage is Stage.RETURNING
    effects = card.do(ContainerEnded(120, "2"))
    effects += card.do(CameBack(121, "1"))
    assert [effect.bytes for effect in effects if isinstance(effect, Granted)] == [6, 1]
    assert Restore("1") in effects


def test_lowest_priority_and_longest_idle_go_first_and_no_more_than_needed():
    card = Card()
    for name, priority in (1, 0), (2, 0), (3, -1), (4, 0), (5, 1):
        card.start(name, 2, priority=priority)
    card.idle(4, since=0)
    card.idle(1, 2, 3, 5, since=10)
    card.start(6, 4)
    assert card.tick(200) == [Preempt("3", "6", Mode.IDLE)]
    assert card.is_out(3, 201) == [Preempt("4", "6", Mode.IDLE)]
    (granted,) = card.is_out(4, 202)
    assert granted.container == "6"
    assert sorted(card.out()) == ["3", "4"]


def test_who_would_not_be_needed_stays():
    card = Card()
    card.start(1, 2)
    card.start(2, 8)
    card.idle(1, since=0)
    card.idle(2, since=10)
    card.start(3, 7)
    assert card.tick(200) == [Preempt("2", "3", Mode.IDLE)]


def test_nobody_goes_if_all_together_would_not_make_room():
    card = Card()
    card.start(1, 4)
    card.start(2, 6)
    card.idle(1)
    card.start(3, 5)
    assert card.tick(200) == []


@pytest.mark.parametrize("how", [{"guaranteed": True}, {"preemptible": False}])
def test_guaranteed_ones_and_who_opted_out_stay(how):
    card = Card(ROTATE)
    card.start(1, 8, **how)
    card.idle(1)
    card.start(2, 5)
    assert card.tick(5000) == []


def test_a_paused_one_stays():
    card = Card(ROTATE)
    card.start(1, 8)
    card.idle(1)
    card.do(ContainerPaused(50, "1"))
    card.start(2, 5)
    assert card.tick(5000) == []


def test_who_is_blocked_by_the_policy_moves_nobody():
    """Under fifo it would not be served: somebody who cannot be helped is before it."""
    card = Card(policy="fifo")
    card.start(1, 3)
    card.start(2, 7)
    card.idle(1)
    card.start(3, 9)
    card.start(4, 3)
    assert card.tick(200) == []


def test_what_could_not_be_moved_is_left_alone_for_a_while():
    card = Card()
    card.start(1, 8)
    card.idle(1)
    card.start(2, 5)
    assert card.tick(100)
    card.do(NotMoved(101, "1", 600))
    assert card.tick(700) == []
    assert card.tick(702) == [Preempt("1", "2", Mode.IDLE)]
    card.do(NotMoved(703, "1", inf))
    assert card.tick(1e9) == []


def test_while_one_moves_no_other_is_asked_to():
    card = Card()
    card.start(1, 5)
    card.start(2, 5)
    card.idle(1, 2)
    card.start(3, 5)
    card.start(4, 5)
    assert card.tick(100) == [Preempt("1", "3", Mode.IDLE)]
    assert card.tick(101) == []
    assert [type(effect) for effect in card.is_out(1, 102)] == [Granted, Preempt]
    card.do(ActivityDetected(103, "1"))
    card.is_out(2, 104)
    assert Restore("1") in card.do(ContainerEnded(105, "3"))
    card.start(5, 5, 106)
    card.idle(4, since=106)
    assert card.tick(300) == []
    assert Preempt("4", "5", Mode.IDLE) in card.do(CameBack(301, "1"))


def test_who_is_leaving_is_lent_nothing_and_is_not_idle_by_being_stopped():
    card = Card()
    card.start(1, 4, quota=9)
    card.idle(1)
    card.start(2, 7)
    card.tick(100)
    assert not any(isinstance(effect, Granted) for effect in card.do(Needed(101, 1, 2, "g", 1)))
    card.idle(1)
    card.is_out(1, 102)
    assert card.state.containers["1"].stage is Stage.RETURNING


def test_a_call_is_not_refused_for_shortage_while_its_container_gives_way():
    card = Card()
    card.start(1, 4, quota=5, fail_fast=True)
    card.idle(1)
    card.start(2, 9)
    card.tick(100)
    effects = card.do(Needed(101, 1, 2, "g", 1)) + card.do(SwappedOut(102, "1"))
    assert not any(isinstance(effect, Rejected) for effect in effects)
    effects = card.do(ContainerEnded(103, "2")) + card.do(CameBack(104, "1"))
    assert [effect.bytes for effect in effects if isinstance(effect, Granted)] == [4, 1]


@pytest.mark.parametrize("moved", [False, True])
def test_a_call_that_was_spared_is_refused_once_its_container_has_given_way_and_is_still_short(moved):
    card = Card()
    card.start(1, 4, quota=9, fail_fast=True)
    card.idle(1)
    card.start(3, 3)
    card.start(2, 7)
    card.tick(100)
    assert not any(isinstance(effect, Rejected) for effect in card.do(Needed(101, 1, 2, "g", 5)))
    if moved:
        card.is_out(1, 102)
        card.start(4, 3, 103)
        assert Restore("1") in card.do(ContainerEnded(104, "2"))
        effects = card.do(CameBack(105, "1"))
    else:
        effects = card.do(NotMoved(102, "1"))
    (rejected,) = [effect for effect in effects if isinstance(effect, Rejected)]
    assert (rejected.container, rejected.reason) == ("1", Reason.SHORTAGE)


def test_the_budget_of_host_memory_is_kept():
    card = Card(replace(IDLE, memory=7))
    card.start(1, 4)
    card.start(2, 4)
    card.idle(1, 2)
    card.start(3, 8)
    assert card.tick(200) == []
    card.start(4, 5, 200)
    assert card.tick(201) == [Preempt("1", "4", Mode.IDLE)]


# ---- rotate ----


def test_who_has_held_long_gives_way_to_who_has_waited_long_and_is_wanted_back_at_once():
    card = Card(ROTATE)
    card.start(1, 8)
    card.start(2, 6, 500)
    assert card.tick(1499) == []
    assert card.tick(1500) == [Preempt("1", "2", Mode.ROTATE)]
    (granted,) = card.is_out(1, 1501)
    assert granted.container == "2"
    assert card.state.containers["1"].stage is Stage.RETURNING


def test_nobody_goes_again_before_it_has_held_for_long_once_more():
    card = Card(ROTATE)
    card.start(1, 8)
    card.start(2, 6)
    card.tick(1000)
    card.is_out(1, 1001)  # and waits from now on
    assert card.tick(2000) == []
    assert card.tick(2001) == [Preempt("2", "1", Mode.ROTATE)]
    card.is_out(2, 2010)
    card.do(CameBack(2020, "1"))
    assert card.tick(3015) == []
    assert card.tick(3020) == [Preempt("1", "2", Mode.ROTATE)]


def test_who_waited_for_more_as_it_went_keeps_its_place():
    """A (1) holds and has waited for more since 100; it gives way to 2, which has waited longer."""
    card = Card(ROTATE)
    card.start(1, 4, quota=9)
    card.start(3, 2)
    card.start(2, 8, 50)
    card.do(Needed(100, 1, 2, "g", 5))
    assert card.tick(1050) == [Preempt("1", "2", Mode.ROTATE)]
    card.is_out(1, 1051)
    (back,) = [request for request in card.state.waiting if request.back]
    assert back.since == 100


def test_who_was_paused_as_it_went_keeps_its_place_too():
    card = Card(ROTATE)
    card.start(1, 4, quota=9)
    card.start(3, 2)
    card.start(2, 8, 50)
    card.do(Needed(100, 1, 2, "g", 5))
    card.do(ContainerPaused(110, "1"))
    card.is_out(1, 120)
    card.do(ContainerResumed(130, "1"))
    assert {request.since for request in card.state.waiting if request.container == "1"} == {100}


def test_until_it_is_back_none_of_its_processes_gets_more():
    """What another of them got meanwhile would count as out if its return is called off."""
    card = Card()
    card.start(1, 4, quota=9)
    card.idle(1)
    card.start(2, 8)
    card.tick(100)
    card.is_out(1, 101)
    card.do(ActivityDetected(102, "1"))
    assert Restore("1") in card.do(ContainerEnded(103, "2"))
    card.do(SessionOpened(104, 5, "1"))
    assert not any(isinstance(effect, Granted) for effect in card.do(Needed(104, 5, 1, "g", 3)))
    (granted,) = [effect for effect in card.do(CameBack(105, "1")) if isinstance(effect, Granted)]
    assert (granted.session, granted.bytes) == (5, 3)


def test_where_the_process_that_was_out_has_ended_nothing_is_out_any_more():
    """A kernel that is started anew, say."""
    card = Card()
    card.start(1, 4, quota=9)
    card.idle(1)
    card.start(2, 8)
    card.tick(100)
    card.is_out(1, 101)
    card.do(SessionOpened(102, 5, "1"))
    assert card.do(SessionEnded(103, 1)) == [Restore("1")]
    card.do(Needed(104, 5, 1, "g", 2))
    assert any(isinstance(effect, Granted) for effect in card.do(CameBack(105, "1")))


def test_nobody_goes_for_one_of_lower_priority():
    card = Card(ROTATE)
    card.start(1, 8, priority=1)
    card.start(2, 6)
    assert card.tick(9000) == []
    card.idle(1, since=8000)
    assert card.tick(9000) == [Preempt("1", "2", Mode.IDLE)]


def test_long_is_no_less_than_what_both_transfers_are_worth():
    """14 bytes out at 0.1 and back at 0.2 a second are 210 s, and four transfers at least 5 s each: 230 s, 20 times."""
    card = Card(replace(ROTATE, out=0.1, back=0.2, least=5))
    card.start(1, 8)
    card.start(2, 6)
    assert card.tick(4599) == []
    assert card.tick(4600) == [Preempt("1", "2", Mode.ROTATE)]


@pytest.mark.parametrize(
    "rule", [replace(IDLE, idle=nan), replace(IDLE, least=-1), replace(IDLE, rotate=-1), replace(IDLE, out=0)]
)
def test_a_rule_that_makes_no_sense_is_refused(rule):
    card = Card()
    assert isinstance(card.do(PreemptionChanged(1, rule))[0], Refused)
    assert card.state.preemption == IDLE


def test_who_is_unknown_is_no_matter():
    card = Card()
    for event in (Idle(1, "X", 0), ActivityDetected(1, "X"), CameBack(1, "X"), NotMoved(1, "X"), NotMoved(1, "X", nan)):
        assert card.do(event) == []
