"""Every state of small hosts with planned launches and reservations; `explore --planned` has larger ones, and walks."""

import pytest

from benchmarks.simulation.exploring.explorer import Broken
from benchmarks.simulation.exploring.planned_explorer import explore, walk
from benchmarks.simulation.exploring.planned_lab import LABS, LARGE, Job, Lab
from scheduler.core.planned.order import Queue

SMALL = Lab(2, planned=(Job("a", 1), Job("b", 2)), reserved=(Job("a", 1),), turns=True)


@pytest.mark.parametrize("lab", [SMALL, *LABS], ids=str)
def test_no_order_of_plans_starts_reservations_and_claims_breaks_anything(lab):
    assert explore(lab, limit=150) > 100


@pytest.mark.long
@pytest.mark.parametrize("lab", LABS, ids=str)
def test_all_states_of_these_are_sound(lab):
    assert explore(lab) > 200


@pytest.mark.parametrize("lab", LARGE, ids=["one GPU", "two GPUs, moves"])
def test_steps_at_random_on_larger_hosts_break_nothing(lab):
    assert walk(lab, range(2), steps=40) > 40


def test_the_explorer_finds_a_start_in_what_is_reserved_for_others(monkeypatch):
    monkeypatch.setattr("scheduler.core.reserved.kept", lambda *_: 0)
    with pytest.raises(Broken, match=r"begins on g0 with|reserved for others"):
        explore(SMALL)


def test_the_explorer_finds_a_promise_that_is_forgotten(monkeypatch):
    monkeypatch.setattr("scheduler.core.planned.order._promised", lambda *_: [])
    with pytest.raises(Broken, match=r"begins on g0 with \d, and"):
        explore(SMALL)


def test_the_explorer_finds_who_is_kept_out_of_what_is_reserved_for_them(monkeypatch):
    """By another's planned launch, that is due and waits for the reservation's end."""
    monkeypatch.setattr("scheduler.core.planned.order.own_room", lambda *_: 0)
    with pytest.raises(Broken, match="is due and never begins"):
        explore(SMALL)


def test_the_explorer_finds_a_person_who_passes_others_twice(monkeypatch):
    monkeypatch.setattr(Queue, "note", lambda *_: None)
    with pytest.raises(Broken, match="begin twice before it"):
        explore(Lab(2, planned=(Job("a", 2), Job("a", 2), Job("b", 2)), turns=True))


def test_the_explorer_finds_two_that_wait_for_each_other_beside_a_reservation(monkeypatch):
    monkeypatch.setattr("scheduler.core.safety.harmless", lambda *_: True)
    with pytest.raises(Broken, match="may never end"):
        explore(Lab(2, launched=(Job("a", 2), Job("b", 2)), reserved=(Job("a", 1),)))
