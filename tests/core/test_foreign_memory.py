"""Foreign memory comes and goes: what is granted meanwhile must not leave a deadlock behind once it has gone."""

from scheduler.core import safety
from scheduler.core.effects import Admitted, Granted, Reason, Refused, Suspended
from scheduler.core.events import ContainerAdded, GpuSeen, QuotaChanged, SessionEnded, SessionOpened
from tests.support.world import Process, World

A, B = 1, 2


def two(**quotas: int) -> World:
    """A card of 10, and two containers with these quotas."""
    world = World(policy="fifo")
    world.do(GpuSeen(0, "g", 10, 10))
    for session, (name, quota) in enumerate(quotas.items(), start=1):
        world.do(ContainerAdded(0, name, {"g": quota}))
        world.do(SessionOpened(0, session, name))
        world.processes[session] = Process(name)
    return world


def foreign(world: World, size: int) -> list:
    return world.do(GpuSeen(1, "g", 10 - size, 10))


def ends(world: World, session: int) -> list:
    del world.processes[session]
    return world.do(SessionEnded(2, session))


def kinds(effects: list) -> set:
    return {type(effect) for effect in effects} & {Granted, Suspended, Admitted, Refused}


def test_a_call_that_would_be_a_deadlock_without_foreign_memory_is_not_granted_with_it():
    world = two(A=8, B=9)
    world.need(A, 1, "g", 2, 0)
    foreign(world, 3)  # 5 are free: neither can have its whole quota any more
    assert Granted not in kinds(world.need(B, 1, "g", 5, 1))
    foreign(world, 0)
    assert safety.completable(world.state, ["g"]) == {"A", "B"}
    assert Granted in kinds(ends(world, A))


def test_a_call_is_granted_that_harms_nobody_at_any_time():
    world = two(A=8, B=4)
    world.need(A, 1, "g", 4, 0)
    foreign(world, 3)  # 3 are free: neither can have its whole quota
    assert Granted in kinds(world.need(B, 1, "g", 2, 1))  # once it has gone B can end first


def test_a_quota_that_would_be_a_deadlock_without_foreign_memory_is_refused_with_it():
    world = two(A=8, B=5)
    world.need(A, 1, "g", 4, 0)
    world.need(B, 1, "g", 4, 0)
    foreign(world, 2)
    (refused,) = [effect for effect in world.do(QuotaChanged(1, "B", {"g": 9})) if isinstance(effect, Refused)]
    assert refused.reason is Reason.UNSAFE


def test_what_it_waits_for_is_granted_when_the_others_have_ended_though_foreign_memory_stays():
    world = two(A=8, B=9)
    world.need(A, 1, "g", 2, 0)
    foreign(world, 3)
    world.need(B, 1, "g", 5, 1)
    assert Granted in kinds(ends(world, A))
