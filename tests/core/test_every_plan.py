"""Every state of small hosts with planned launches and reservations; `explore --planned` has larger ones, and walks."""

import pytest

from benchmarks.simulation.exploring.explorer import Broken
from benchmarks.simulation.exploring.planned_explorer import explore, walk
from benchmarks.simulation.exploring.planned_lab import LABS, LARGE, Job, Lab
from scheduler.core import reserved
from scheduler.core.events import ContainerEnded
from scheduler.core.planned import order

SMALL = Lab(2, planned=(Job("a", 1), Job("b", 2)), reserved=(Job("a", 1),))


@pytest.mark.parametrize("lab", [SMALL, *LABS], ids=str)
def test_no_order_of_plans_starts_reservations_and_claims_breaks_anything(lab):
    assert explore(lab, limit=150) > 100


@pytest.mark.long
@pytest.mark.parametrize("lab", LABS, ids=str)
def test_many_states_of_these_are_sound(lab):
    assert explore(lab, limit=1000) > 200


@pytest.mark.parametrize("lab", LARGE, ids=["one GPU", "two GPUs, moves"])
def test_steps_at_random_on_larger_hosts_break_nothing(lab):
    assert walk(lab, range(2), steps=40) > 40


def test_the_explorer_finds_a_promise_in_what_is_reserved_for_others(monkeypatch):
    monkeypatch.setattr("scheduler.core.reserved.kept", lambda *_: 0)
    with pytest.raises(Broken, match="reserved for others"):
        explore(SMALL)


def test_the_explorer_finds_a_planned_launch_that_others_pass_for_ever(monkeypatch):
    """It waits beside the memory queue until there is room, as before there were stand-ins."""
    place = order._place
    monkeypatch.setattr(order, "_place", lambda state, its: place(state, its) if _fits(state, its) else ())
    with pytest.raises(Broken, match="is due and does not begin, as others come again and again"):
        explore(Lab(2, launched=(Job("b", 1), Job("c", 1)), planned=(Job("a", 2),)))


def _fits(state, its):
    return order.fitting(state, its.shape, {gpu: reserved.free(state, gpu, its.owner) for gpu in state.gpus}, its.owner)


def test_the_explorer_finds_a_stand_in_that_is_left_when_its_launch_is_held(monkeypatch):
    steps = order.Queue.steps
    kept = lambda *its: (each for each in steps(*its) if not isinstance(each, ContainerEnded))  # noqa: E731
    monkeypatch.setattr(order.Queue, "steps", kept)
    with pytest.raises(Broken, match="stands in the queue for nothing"):
        explore(SMALL)


def test_the_explorer_finds_two_that_wait_for_each_other_beside_a_reservation(monkeypatch):
    monkeypatch.setattr("scheduler.core.safety.harmless", lambda *_: True)
    with pytest.raises(Broken, match="may never end"):
        explore(Lab(2, launched=(Job("a", 2), Job("b", 2)), reserved=(Job("a", 1),)))
