"""Memory that is reserved: kept for its people while it is in force, and for nobody before and after."""

from collections.abc import Iterable
from math import inf, nan
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core import reserved
from scheduler.core.effects import Granted, Preempt, Reason, Refused, Restore
from scheduler.core.events import (
    ContainerAdded,
    ContainerEnded,
    GpuSeen,
    Movable,
    Needed,
    NotMoved,
    PreemptionChanged,
    ReservesChanged,
    SessionOpened,
    SwappedOut,
)
from scheduler.core.forecast import forecast
from scheduler.core.invariants import violations
from scheduler.core.reserved import NO_SHOW, giving
from scheduler.core.state import Mode, Preemption, Reserve
from tests.core.test_preemption import Card

RULE = Preemption(Mode.OFF, out=1, back=1, least=0)  # a byte a second; nobody gives way to who waits


class Booked(Card):
    """The same card; ada has reserved some of it."""

    def __init__(self, rule: Preemption = RULE, policy: str = "fair") -> None:
        super().__init__(rule, policy)

    def reserve(self, *reserves: Reserve, now: float = 0.0) -> list[Any]:
        return self.do(ReservesChanged(now, reserves))

    def granted(self, effects: Iterable[Any]) -> list[str]:
        return [each.container for each in effects if isinstance(each, Granted)]


def booked(amount: int = 6, begins: float = 1000.0, ends: float = 5000.0, **fields: Any) -> Reserve:
    return Reserve(**{"id": "r", "gpu": "g", "bytes": amount, "people": frozenset({"ada"}), "begins": begins,
                      "ends": ends, **fields})  # fmt: skip


def test_before_it_begins_anybody_may_use_it_and_then_only_its_people():
    card = Booked()
    card.reserve(booked())
    assert card.granted(card.start(1, 2, owner="bob"))
    card.tick(1000)
    assert card.granted(card.start(2, 2, 1001, owner="bob"))
    assert not card.granted(card.start(3, 2, 1002, owner="bob"))
    assert card.granted(card.start(4, 6, 1003, owner="ada")) == ["4"]
    assert card.granted(card.do(ContainerEnded(1004, "1"))) == ["3"]
    assert (reserved.kept(card.state, "g"), reserved.free(card.state, "g")) == (0, 0)


def test_what_is_guaranteed_is_granted_also_where_a_reservation_begins_short():
    card = Booked()
    card.reserve(booked())
    card.do(ContainerAdded(0.0, "1", {"g": 8}, owner="bob", guaranteed=True))
    card.do(SessionOpened(0.0, 1, "1"))
    card.tick(1000)
    assert card.granted(card.do(Needed(1001.0, 1, 1, "g", 8))) == ["1"]


def test_at_its_end_the_priority_ends_and_nobody_has_to_leave():
    card = Booked()
    card.reserve(booked(ends=1600.0))
    card.tick(1000)
    card.start(1, 3, 1001, owner="ada")
    card.start(2, 6, 1002, owner="bob")
    assert not card.granted(card.do(ReservesChanged(1599, card.state.reserves)))
    effects = card.do(ReservesChanged(1600, card.state.reserves))
    assert card.granted(effects) == ["2"]
    assert (card.state.containers["1"].leased, card.state.reserves) == ({"g": 3}, ())


def test_holders_without_a_right_are_moved_just_in_time_and_no_more_than_needed():
    card = Booked()
    for name, amount in ((1, 3), (2, 4), (3, 3)):
        card.start(name, amount, owner="bob")
    card.reserve(booked())
    lead = giving.MARGIN + giving.SLOWER * 7  # of whom holds 3 and whom holds 4
    assert card.tick(999 - lead) == []
    (first,) = card.tick(1000 - lead)
    assert (first.whom, first.why) == ("r", Mode.BOOKED)
    second = card.is_out(int(first.container), 1000 - lead + 4)
    assert [type(each) for each in second] == [Preempt]
    card.is_out(int(second[0].container), 1000 - lead + 8)
    assert reserved.free(card.state, "g", "ada") >= 6
    assert card.tick(1000) == []
    assert card.granted(card.start(4, 6, 1001, owner="ada")) == ["4"]
    assert not any(isinstance(each, Restore) for each in card.do(ContainerEnded(1100, "4")))
    back = [each.container for each in card.do(ReservesChanged(5000, ())) if isinstance(each, Restore)]
    assert sorted(back) == sorted([first.container, second[0].container])


def test_what_its_people_hold_already_is_not_kept_a_second_time():
    card = Booked()
    card.start(1, 4, owner="ada")
    card.start(2, 6, owner="bob")
    card.reserve(booked(4))
    assert card.tick(1001) == []
    assert reserved.kept(card.state, "g") == 0


@pytest.mark.parametrize(
    ("how", "movable", "rule"),
    [
        ({"guaranteed": True}, True, RULE),
        ({"preemptible": False}, True, RULE),
        ({}, False, RULE),
        ({}, True, Preemption(able=False)),
        ({}, True, Preemption(memory=4)),
    ],
)
@pytest.mark.parametrize("ends_others", [False, True])
def test_whoever_cannot_be_moved_stays_or_ends_as_the_reservation_says(how, movable, rule, ends_others):
    card = Booked(rule)
    card.start(1, 8, owner="bob", **how)
    card.do(Movable(1.0, "1", movable))
    card.reserve(booked(ends_others=ends_others))
    assert card.tick(1000 - giving.MARGIN) == []
    assert giving.in_the_way(card.state) == {}  # it has not begun
    card.tick(1000)
    assert giving.in_the_way(card.state) == ({"1": "r"} if ends_others else {})
    assert not card.granted(card.start(2, 6, 1001, owner="ada"))
    assert not card.granted(card.start(3, 2, 1001, owner="bob"))  # the two bytes that are free are kept
    assert card.granted(card.do(ContainerEnded(1100, "1"))) == ["2", "3"]


def test_nobody_ends_for_it_while_somebody_is_on_the_way_out():
    card = Booked()
    card.start(1, 4, owner="bob")
    card.start(2, 6, owner="bob", guaranteed=True)
    card.reserve(booked(10, ends_others=True))
    (effects,) = card.tick(1000)
    assert (effects.container, giving.in_the_way(card.state)) == ("1", {})
    card.is_out(1, 1001)
    assert giving.in_the_way(card.state) == {"2": "r"}


def test_one_that_could_not_be_moved_is_tried_again_later():
    card = Booked()
    card.start(1, 8, owner="bob")
    card.reserve(booked())
    (effects,) = card.tick(1000)
    card.do(NotMoved(1001, effects.container, 60))
    assert card.tick(1060) == []
    assert card.tick(1062) == [effects]


def test_while_nobody_comes_it_is_lent_and_comes_back_on_claim():
    card = Booked()
    card.reserve(booked())
    card.tick(1000)
    card.start(1, 8, 1001, owner="bob")
    assert card.state.containers["1"].leased == {}
    assert card.tick(1000 + NO_SHOW - 1) == []
    card.tick(1000 + NO_SHOW)
    assert card.state.containers["1"].leased == {"g": 8}
    card.start(2, 6, 2000, owner="ada")
    assert card.tick(2001) == [Preempt("1", "r", Mode.BOOKED)]
    assert [each.container for each in card.is_out(1, 2010) if isinstance(each, Granted)] == ["2"]


def test_its_people_go_before_whoever_waited_longer_or_was_put_first():
    card = Booked()
    card.start(1, 8, owner="bob")
    card.start(2, 10, owner="bob")
    card.do(PreemptionChanged(1.0, Preemption(able=False)))
    card.reserve(booked(10))
    card.tick(1700)  # the call of 2 has waited for longer than anybody's patience
    card.start(3, 10, 1701, owner="ada")
    assert card.granted(card.do(ContainerEnded(1702, "1"))) == ["3"]


def test_nobody_is_let_in_before_a_head_that_would_have_no_room_beside_what_is_kept():
    card = Booked()
    card.reserve(booked(4, ends=1e6))
    card.tick(1000)
    card.start(1, 5, 1001, owner="bob")
    card.do(ContainerAdded(1002, "ada's", {"g": 1}, owner="ada"))  # so that it is not lent
    assert not card.granted(card.start(2, 6, 1002, owner="eve"))
    card.tick(1700)
    assert not card.granted(card.start(3, 1, 1701, owner="zoe"))  # it is free, and 4 are free beside a quota of 6
    assert card.granted(card.do(ContainerEnded(1702, "1"))) == ["2"]


def test_a_forecast_and_a_guarantee_reckon_with_it():
    card = Booked()
    card.reserve(booked(ends=2000.0))
    card.tick(1000)
    assert forecast(card.state, {"g": 6}, person="ada").fits
    other = forecast(card.state, {"g": 6}, person="bob")
    assert (other.fits, other.latest) == (False, 2000.0)
    (refused,) = [
        each
        for each in card.do(ContainerAdded(1001, "x", {"g": 6}, owner="bob", guaranteed=True))
        if isinstance(each, Refused)
    ]
    assert "4 bytes is free, 6 bytes more reserved" in refused.explanation


def test_a_forecast_reckons_with_one_that_begins_later_from_its_begin_on():
    card = Booked()
    card.start(1, 8, owner="bob")
    card.reserve(booked(8))
    for ends, latest in ((600.0, 600.0), (1200.0, 5000.0)):
        assert forecast(card.state, {"g": 4}, {"1": ends}, person="eve").latest == latest
        assert forecast(card.state, {"g": 4}, {"1": ends}, person="ada").latest == ends


def test_of_several_reservations_the_worst_moment_within_the_time_counts():
    card = Booked()
    card.reserve(booked(3), booked(4, 2000.0, 3000.0, id="s"), booked(2, 6000.0, 7000.0, id="t", people=frozenset("b")))
    found = [reserved.of_others(card.state, "g", "eve", lasts) for lasts in (900, 1100, 2100, inf)]
    assert found == [0, 3, 7, 7]
    assert reserved.of_others(card.state, "g", "ada") == 2


@pytest.mark.parametrize("fields", [{"amount": 0}, {"begins": nan}, {"ends": inf}, {"begins": 9.0, "ends": 9.0}])
def test_one_that_makes_no_sense_changes_nothing(fields):
    card = Booked()
    card.reserve(booked())
    (refused,) = [each for each in card.reserve(booked(**fields)) if isinstance(each, Refused)]
    assert (refused.reason, card.state.reserves) == (Reason.INVALID, (booked(seen=1000.0),))


def test_one_on_a_card_that_is_gone_is_as_if_it_were_not_there():
    card = Booked()
    card.reserve(booked(gpu="h"))
    card.tick(1001)
    assert card.granted(card.start(1, 10, 1002, owner="bob")) == ["1"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "end", "out", "back", "tick", "reserve", "card"]),
        st.integers(1, 6),
        st.integers(1, 10),
        st.sampled_from(["ada", "bob", "eve"]),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from(["fair", "fifo", "best-fit", "random"]))
def test_nobody_without_a_right_is_granted_what_is_kept_and_nobody_deadlocks(steps, policy):
    """Every step is checked by `violations`; a grant to others leaves what is kept, or is not made."""
    card = Booked(Preemption(Mode.ROTATE, rotate=50, out=10, back=10, least=0), policy)
    now = 0.0
    for what, number, amount, owner in steps:
        now += 20.0 * number
        before = card.state
        if what == "start" and str(number) not in before.containers:
            effects = card.start(number, min(amount, 3), now, owner=owner, quota=amount)
        elif what == "end":
            effects = card.do(ContainerEnded(now, str(number)))
        elif what == "out":
            effects = card.do(SwappedOut(now, str(number)))
        elif what == "card":
            effects = card.do(GpuSeen(now, "g", amount, 10))
        elif what == "reserve":
            effects = card.reserve(booked(amount, now + 30, now + 500, people=frozenset({owner})), now=now)
        else:
            effects = card.tick(now)
        assert violations(card.state) == []
        for each in effects:
            if isinstance(each, Granted) and what != "start":  # what a start returns of headroom is later
                owner_of = card.state.containers[each.container].owner
                assert reserved.free(card.state, "g", owner_of) >= -each.extra


def test_where_holders_can_be_moved_it_is_there_when_it_begins():
    """A hundred cards full of holders of any sizes, whose moves take up to 1.4 times what is measured."""
    there = 0
    for seed in range(100):
        chance = Random(seed)
        card = Booked(Preemption(Mode.OFF, out=4, back=4, least=0.5))
        card.do(GpuSeen(0.0, "g", 100))
        left, name = 100, 0
        while left:
            size = min(left, chance.randint(10, 40))
            name, left = name + 1, left - size
            card.start(name, size, owner="bob")
        card.reserve(booked(chance.randint(1, 100)))
        now, done, moving = 900.0, inf, ""
        while now <= 1000:
            if now >= done:
                preempts = [each for each in card.do(SwappedOut(now, moving)) if isinstance(each, Preempt)]
                done = inf
            else:
                preempts = card.tick(now)
            for each in preempts:
                size = card.state.containers[each.container].leased["g"]
                moving, done = each.container, now + (0.5 + size / 4) * chance.uniform(0.7, 1.4)
            now += 2.0
        there += reserved.short(card.state, "g") <= 0
    assert there == 100
