"""After a restart nobody loses the place: in whatever order those who waited ask again, the same are served."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler.core.arbiter import handle
from scheduler.core.effects import Effect, Granted, Reason, Refused, Rejected
from scheduler.core.events import (
    ContainerAdded,
    ContainerEnded,
    ContainerKilled,
    ContainerPaused,
    ContainerResumed,
    GpuSeen,
    Needed,
    SessionEnded,
    SessionOpened,
    Ticked,
    WaitedBefore,
    WaitOver,
)
from scheduler.core.policies import POLICIES
from scheduler.core.state import State
from tests.support.world import Process, World

GPUS = ("g0", "g1")
CAPACITY = 12
UNTIL = 1000.0  # by which whoever is expected has asked
quotas = st.one_of(
    st.fixed_dictionaries({"g0": st.integers(1, CAPACITY)}),
    st.fixed_dictionaries({"g0": st.integers(1, CAPACITY), "g1": st.integers(1, CAPACITY)}),
)
# Each has a part of its quota that it asks for first, and one that it asks for when it has that.
containers = st.lists(st.tuples(quotas, st.floats(0.1, 1), st.floats(0, 1), st.sampled_from((0, 50))), min_size=3)


def world_of(policy: str, wanted) -> World:
    world = World(policy)
    for gpu in GPUS:
        world.do(GpuSeen(0.0, gpu, CAPACITY))
    for number, (quota, first, second, priority) in enumerate(wanted[:8], 1):
        now = float(number)
        world.do(ContainerAdded(now, str(number), quota, priority=priority, owner=f"u{number % 2}"))
        world.do(SessionOpened(now, number, str(number)))
        process = world.processes[number] = Process(str(number))
        gpu = max(quota)
        amount = max(1, round(quota[gpu] * first))
        world.need(number, 1, gpu, amount, now)
        if (more := round((quota[gpu] - amount) * second)) and not process.calls:
            world.need(number, 2, gpu, more, now)
    world.do(Ticked(100.0))  # nobody is within a start
    return world


def restarted(before: World) -> World:
    """Another scheduler has taken everybody over, and nobody has asked it yet."""
    state, after = before.state, World(before.state.policy)
    for gpu in GPUS:
        after.do(GpuSeen(state.now, gpu, CAPACITY))
    for name, its in state.containers.items():
        after.do(ContainerAdded(state.now, name, its.quota, its.owner, its.priority, paused=its.paused, running=True))
    for key, process in before.processes.items():
        kept = {gpu: amount for gpu, amount in process.used.items() if amount}
        after.processes[key] = Process(process.container)
        after.processes[key].used.update(kept)
        after.do(SessionOpened(state.now, key, process.container, kept))
    after.do(WaitedBefore(state.now, frozenset(r.container for r in state.waiting), UNTIL))
    return after


def ask_again(world: World, request) -> list[Effect]:
    world.processes[request.session].calls[request.serial] = (request.gpu, request.bytes)
    now = world.state.now
    return world.do(Needed(now, request.session, request.serial, request.gpu, request.bytes, since=request.since))


def granted(effects) -> set[str]:
    return {effect.container for effect in effects if isinstance(effect, Granted)}


def waiting(state: State) -> list[tuple[str, int]]:
    return [(request.container, request.bytes) for request in state.waiting]


@given(policy=st.sampled_from(sorted(POLICIES)), wanted=containers, data=st.data())
def test_whoever_asks_first_again_nobody_is_served_who_was_not_before(policy, wanted, data):
    before = world_of(policy, wanted)
    after = restarted(before)
    for request in data.draw(st.permutations(before.state.waiting)):
        assert granted(ask_again(after, request)) == set()
    assert waiting(after.state) == waiting(before.state)
    assert not after.state.expected.containers


@given(policy=st.sampled_from(sorted(POLICIES.keys() - {"random"})), wanted=containers, data=st.data())
def test_what_came_free_meanwhile_goes_to_whom_it_would_have_gone_to(policy, wanted, data):
    before = world_of(policy, wanted)
    queue = before.state.waiting
    holders = sorted(before.state.containers.keys() - {request.container for request in queue})
    after = restarted(before)
    if holders:
        gone = data.draw(st.sampled_from(holders))
        del before.processes[int(gone)]
        del after.processes[int(gone)]
        served = granted(before.do(ContainerEnded(before.state.now, gone)))
        again = granted(after.do(ContainerEnded(after.state.now, gone)))
        for request in data.draw(st.permutations(queue)):
            again |= granted(ask_again(after, request))
        assert again == served
        assert waiting(after.state) == waiting(before.state)


# ---- one by one --------------------------------------------------------------------------------------------------


def after_a_restart(**more) -> tuple[World, list]:
    """One holds 7 of 10; A, B and C wait for 3, 2 and 6 of their quotas, in this order, and are expected."""
    world = World("fair")
    world.do(GpuSeen(0.0, "g", 10))
    world.do(ContainerAdded(0.0, "holder", {"g": 8}, running=True))
    world.do(SessionOpened(0.0, 9, "holder", {"g": 7}))
    world.processes[9] = Process("holder")
    world.processes[9].used["g"] = 7
    asks = []
    for session, (name, quota, size) in enumerate((("A", 6, 3), ("B", 5, 2), ("C", 8, 6)), 1):
        world.do(ContainerAdded(0.0, name, {"g": quota}, running=True, **more))
        world.do(SessionOpened(0.0, session, name))
        world.processes[session] = Process(name)
        asks.append(lambda s=session, b=size: need(world, s, b, since=float(s) - 10))
    world.do(WaitedBefore(1.0, frozenset("ABC"), UNTIL))
    return world, asks


def need(world: World, session: int, size: int, since: float | None = None, serial: int = 1) -> list[Effect]:
    world.processes[session].calls[serial] = ("g", size)
    return world.do(Needed(world.state.now, session, serial, "g", size, since=since))


def test_who_connects_first_does_not_have_what_was_meant_for_somebody_before_it():
    world, (a, b, c) = after_a_restart()
    assert granted(b()) == set()  # alone, it would be served
    assert granted(c()) == set()
    assert granted(a()) == set()  # and with all of them there no whole quota is free
    assert [name for name, _ in waiting(world.state)] == ["A", "B", "C"]


def test_a_newcomer_waits_until_they_have_asked():
    world, _ = after_a_restart()
    world.do(ContainerAdded(2.0, "D", {"g": 3}))
    world.do(SessionOpened(2.0, 4, "D"))
    world.processes[4] = Process("D")
    assert granted(need(world, 4, 1)) == set()
    for name in "ABC":
        del world.processes[ord(name) - 64]
        effects = world.do(ContainerEnded(3.0, name))
    assert granted(effects) == {"D"}


def test_who_holds_memory_and_asks_for_more_waits_for_nobody():
    world, _ = after_a_restart()
    effects = need(world, 9, 1)
    assert granted(effects) == {"holder"}
    assert [effect.extra for effect in effects if isinstance(effect, Granted)] == [0]  # others are about to ask


def test_who_holds_memory_and_had_waited_before_waits_for_the_others_too():
    world, (a, b, c) = after_a_restart()
    assert granted(need(world, 9, 1, since=-20.0)) == set()
    assert granted(b()) == granted(c()) == set()
    assert granted(a()) == {"holder"}


def test_who_holds_memory_on_one_gpu_waits_for_nobody_on_another():
    """On the first it is held up for another that has not asked yet, and tried there again once it holds."""
    world = World("fifo")
    for gpu in GPUS:
        world.do(GpuSeen(0.0, gpu, 10))
    for session, (name, quota) in enumerate((("both", {"g0": 5, "g1": 5}), ("first", {"g0": 1}), ("gone", {"g1": 1}))):
        world.do(ContainerAdded(0.0, name, quota, running=True))
        world.do(SessionOpened(0.0, session, name))
        world.processes[session] = Process(name)
    world.do(WaitedBefore(1.0, frozenset(("first", "gone")), UNTIL))
    assert [granted(world.need(0, serial, gpu, 2, 1.0)) for serial, gpu in enumerate(GPUS)] == [set(), set()]
    del world.processes[2]
    effects = world.do(ContainerEnded(2.0, "gone"))
    assert [effect.gpu for effect in effects if isinstance(effect, Granted)] == ["g1", "g0"]


@pytest.mark.parametrize(
    "over",
    [
        lambda world: world.do(Ticked(UNTIL)),
        lambda world: [effect for name in "AC" for effect in world.do(ContainerKilled(2.0, name))],
        lambda world: [effect for name in "AC" for effect in world.do(ContainerPaused(2.0, name))],
        lambda world: [effect for name in "AC" for effect in world.do(WaitOver(2.0, name))],
        lambda world: [effect for key in (1, 3) for effect in end(world, key)],
        lambda world: world.do(WaitedBefore(2.0, frozenset(), UNTIL)),
    ],
    ids=["late", "killed", "paused", "had it", "ended", "reported anew"],
)
def test_it_goes_on_without_those_who_do_not_ask_again(over):
    world, (_, b, _) = after_a_restart()
    assert granted(b()) == set()
    assert granted(over(world)) == {"B"}


def end(world: World, session: int) -> list[Effect]:
    del world.processes[session]
    return world.do(SessionEnded(2.0, session))


def test_one_that_was_paused_is_expected_again_when_it_is_resumed():
    world, (_, b, _) = after_a_restart()
    for name in "AC":
        world.do(ContainerPaused(2.0, name))
    world.do(ContainerResumed(2.0, "A"))
    assert granted(b()) == set()


def test_who_would_rather_fail_than_wait_fails_only_once_all_have_asked():
    _, (a, b, c) = after_a_restart(fail_fast=True)
    assert not [effect for effect in [*b(), *c()] if isinstance(effect, Rejected)]
    rejected = [effect for effect in a() if isinstance(effect, Rejected)]
    assert {(each.container, each.reason) for each in rejected} >= {("C", Reason.SHORTAGE)}


def test_nothing_is_guaranteed_to_a_newcomer_before_those_who_are_expected():
    world, _ = after_a_restart()
    effects = world.do(ContainerAdded(2.0, "D", {"g": 1}, guaranteed=True))
    assert [effect.reason for effect in effects if isinstance(effect, Refused)] == [Reason.SHORTAGE]


@pytest.mark.parametrize("until", [float("nan"), float("inf"), 0.0, -1.0])
def test_nobody_is_expected_for_ever(until):
    world, _ = after_a_restart()
    state, _ = handle(world.state, WaitedBefore(1.0, frozenset({"A", "nobody"}), until))
    assert not state.expected.containers
