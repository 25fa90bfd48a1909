"""The reason for a wait is true, whatever the reason is."""

import pytest

from scheduler.core import fair, policies
from scheduler.core.events import ContainerAdded, ContainerPaused, GpuSeen, SessionOpened, Ticked
from scheduler.core.reasons import why
from tests.support.world import Process, World


def asked_by(policy: str, *asks: tuple[int, int]) -> World:
    """On a GPU of 10, containers with these quotas each ask for so much, one after the other."""
    world = World(policy)
    world.do(GpuSeen(0, "g", 10))
    ask(world, *asks)
    return world


def ask(world: World, *asks: tuple[int, int]) -> None:
    for session, (quota, asked) in enumerate(asks, len(world.processes)):
        world.do(ContainerAdded(0, str(session), {"g": quota}))
        world.do(SessionOpened(0, session, str(session)))
        world.processes[session] = Process(str(session))
        world.need(session, 1, "g", asked, 0)


def reason(policy: str, *asks: tuple[int, int], paused: bool = False) -> str:
    """Why the last waits."""
    world = asked_by(policy, *asks)
    if paused:
        world.do(ContainerPaused(0, str(len(asks) - 1)))
    assert world.state.waiting[-1].session == len(asks) - 1
    return of_the_last(world)


def of_the_last(world: World) -> str:
    last = world.state.waiting[-1]
    return why(world.state, last, tried=last in policies.order(world.state, "g"))


def test_too_little_is_free():
    assert reason("fair", (8, 8), (6, 6)) == "Needs 6 bytes; 2 bytes is free."


def test_it_is_paused():
    assert reason("fair", (8, 8), (6, 6), paused=True) == "Paused. Its request for 6 bytes waits until it is resumed."


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_it_would_fit_and_not_be_safe(policy):
    world = asked_by(policy, (8, 4), (8, 4))
    world.do(Ticked(fair.STARTING))
    assert of_the_last(world) == (
        "Needs 4 bytes. 6 bytes is free, but a grant would leave 2 bytes, and containers could deadlock."
    )


def test_fair_starts_nobody_by_halves_while_others_wait():
    assert reason("fair", (8, 8), (10, 6), (8, 1)) == (
        "Starts when its whole quota of 8 bytes is free (now 2 bytes). Its first request: 1 bytes."
    )


def test_what_is_free_is_meant_for_one_that_has_just_started():
    assert reason("fair", (9, 1), (8, 4)) == (
        "Starts when its whole quota of 8 bytes is free (now 9 bytes, 8 bytes of it reserved for containers that have "
        "just started). Its first request: 4 bytes."
    )


def test_it_is_not_its_turn():
    assert reason("fifo", (8, 8), (10, 6), (2, 1)) == (
        "Needs 1 bytes of 2 bytes free. A container that has waited longer, or was put first, goes first."
    )


def test_what_is_in_host_memory_comes_back_when_there_is_room():
    world = asked_by("fair", (8, 8))
    world.swap_out("0", 1)
    ask(world, (8, 8))
    world.want_back("0", 2)
    assert of_the_last(world) == "Returns to the GPU when 8 bytes is free (now 2 bytes)."
