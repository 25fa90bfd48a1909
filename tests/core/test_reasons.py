"""Why somebody waits is told truly, whatever the reason is."""

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


def told(policy: str, *asks: tuple[int, int], paused: bool = False) -> str:
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
    assert told("fair", (8, 8), (6, 6)) == "It needs 6 bytes; 2 bytes are free."


def test_it_is_paused():
    assert told("fair", (8, 8), (6, 6), paused=True) == "It is paused; it asks for 6 bytes."


@pytest.mark.parametrize("policy", sorted(policies.POLICIES))
def test_it_would_fit_and_not_be_safe(policy):
    world = asked_by(policy, (8, 4), (8, 4))
    world.do(Ticked(fair.STARTING))
    assert of_the_last(world) == (
        "It needs 4 bytes of 6 bytes free; with the 2 bytes that this would leave, it and others could end up waiting "
        "for each other for ever."
    )


def test_fair_starts_nobody_by_halves_while_others_wait():
    assert told("fair", (8, 8), (10, 6), (8, 1)) == (
        "It starts once its whole quota of 8 bytes is free; 2 bytes are. It asks for 1 bytes first."
    )


def test_what_is_free_is_meant_for_one_that_has_just_started():
    assert told("fair", (9, 1), (8, 4)) == (
        "It starts once its whole quota of 8 bytes is free; 9 bytes are, 8 bytes of it for those who have just "
        "started. It asks for 4 bytes first."
    )


def test_it_is_not_its_turn():
    assert told("fifo", (8, 8), (10, 6), (2, 1)) == (
        "It needs 1 bytes of 2 bytes free; somebody who has waited longer, or was put first, goes first."
    )


def test_what_is_in_host_memory_comes_back_when_there_is_room():
    world = asked_by("fair", (8, 8))
    world.swap_out("0", 1)
    ask(world, (8, 8))
    world.want_back("0", 2)
    assert of_the_last(world) == "It comes back when 8 bytes are free; 2 bytes are."
