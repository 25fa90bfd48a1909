"""Who has its context keeps its claim to the memory that it asks for next: under `fair`, and for a moment only."""

import pytest

from benchmarks.simulation import simulate, workloads
from scheduler.core import fair
from scheduler.core.effects import Granted
from scheduler.core.events import ContainerAdded, ContainerEnded, ContainerPaused, GpuSeen, SessionOpened, Ticked
from tests.support.world import Process, World

CONTEXT = 66
FREE = 388


def card(*quotas: int) -> World:
    """One holds 612, and one that soon ends the 388 beside it; each of the others waits for its context."""
    world = World("fair")
    world.do(GpuSeen(0, "g", 1000))
    for number, quota in (10, 1000 - FREE), (11, FREE):
        add(world, number, quota)
        world.need(number, 1, "g", quota, 0)
    for number, quota in enumerate(quotas, 1):
        add(world, number, quota)
        world.need(number, 1, "g", CONTEXT, 0)
    return world


def add(world: World, number: int, quota: int, *, fail_fast: bool = False) -> None:
    world.do(ContainerAdded(world.state.now, str(number), {"g": quota}, fail_fast=fail_fast))
    world.do(SessionOpened(world.state.now, number, str(number)))
    world.processes[number] = Process(str(number))


def frees(world: World) -> set[str]:
    world.do(Ticked(10))
    del world.processes[11]
    return granted(world.do(ContainerEnded(10, "11")))


def granted(effects) -> set[str]:
    return {effect.container for effect in effects if isinstance(effect, Granted)}


def test_the_last_that_waits_does_not_take_what_the_first_is_about_to_ask_for():
    world = card(380, 380)
    assert frees(world) == {"1"}
    assert granted(world.need(1, 2, "g", 300, 10.2)) == {"1"}


def test_nor_does_one_that_comes_in_that_moment():
    world = card(380)
    assert frees(world) == {"1"}
    add(world, 2, 340)
    assert granted(world.need(2, 1, "g", CONTEXT, 10.1)) == set()
    assert granted(world.need(1, 2, "g", 300, 10.2)) == {"1"}


def test_nor_one_whose_whole_quota_is_free_but_not_beside_that_claim():
    world = card(380, 370, 300)
    (name,) = frees(world)
    assert granted(world.need(int(name), 2, "g", 230, 10.2)) == {name}


def test_who_fits_beside_that_claim_starts():
    world = card(200, 188)
    assert frees(world) == {"1", "2"}


@pytest.mark.parametrize(
    "over",
    [
        lambda world: world.do(Ticked(10 + fair.STARTING)),
        lambda world: world.need(1, 2, "g", 320 - CONTEXT, 10.5),
        lambda world: [world.processes.pop(1), *world.do(ContainerEnded(10.5, "1"))][1:],
        lambda world: world.do(ContainerPaused(10.5, "1")),
    ],
    ids=["its time is over", "it has all of it", "it has ended", "it is paused"],
)
def test_the_claim_is_kept_for_a_moment_only(over):
    world = card(320, 300)
    assert frees(world) == {"1"}
    assert "2" in granted(over(world))


@pytest.mark.parametrize("fail_fast", [False, True])
@pytest.mark.parametrize(
    "disturbance",
    [GpuSeen(0.2, "g", 600, most=1000), ContainerPaused(0.2, "10")],
    ids=["foreign memory has come", "another is paused"],
)
def test_nothing_is_kept_for_who_can_no_longer_get_all_of_it(disturbance, fail_fast):
    world = World("fair")
    world.do(GpuSeen(0, "g", 1000))
    add(world, 10, 300)
    world.need(10, 1, "g", 300, 0)
    add(world, 1, 750)
    assert granted(world.need(1, 1, "g", CONTEXT, 0)) == {"1"}
    world.do(disturbance)
    add(world, 2, 200, fail_fast=fail_fast)
    assert granted(world.need(2, 1, "g", CONTEXT, 0.4)) == {"2"}


def test_programs_that_ask_in_steps_end_earlier_by_it(monkeypatch):
    """`python -m benchmarks.simulation --workload steps` has all of it."""

    def finish() -> float:
        return sum(simulate.run("fair", workloads.steps(26, seed)).finish for seed in range(5))

    with_claims = finish()
    monkeypatch.setattr(fair, "STARTING", 0.0)
    assert with_claims < finish()
