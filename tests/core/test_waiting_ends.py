"""A wait ends: by a limit, a kill, a smaller quota, or because the container asked not to wait at all."""

from scheduler.core.effects import Reason, Rejected
from scheduler.core.events import ContainerAdded, ContainerKilled, GpuSeen, Needed, QuotaChanged, SessionOpened, Ticked
from tests.support.world import Process, World


def one_waits(**settings: object) -> World:
    """A holds 8 of 10; B (quota 8) asks for 6."""
    world = World()
    world.do(GpuSeen(0, "g", 10))
    world.do(ContainerAdded(0, "A", {"g": 8}))
    world.do(ContainerAdded(0, "B", {"g": 8}, **settings))
    for session, name in ((1, "A"), (2, "B")):
        world.do(SessionOpened(0, session, name))
        world.processes[session] = Process(name)
    world.need(1, 1, "g", 8, 0)
    world.need(2, 1, "g", 6, 0)
    return world


def reason_of(effects: list) -> Reason:
    (rejected,) = [effect for effect in effects if isinstance(effect, Rejected)]
    return rejected.reason


def test_fail_fast_never_waits():
    world = one_waits(fail_fast=True)
    assert reason_of(world.log) is Reason.SHORTAGE
    assert not world.state.waiting


def test_the_longest_wait_is_kept():
    world = one_waits(max_wait=30.0)
    assert world.do(Ticked(29.9)) == []
    assert reason_of(world.do(Ticked(30.0))) is Reason.WAITED_TOO_LONG


def test_a_kill_rejects_at_once_and_so_does_every_later_call():
    world = one_waits()
    assert reason_of(world.do(ContainerKilled(1, "B"))) is Reason.KILLED
    world.processes[2].calls[2] = ("g", 1)
    assert reason_of(world.do(Needed(2, 2, 2, "g", 1))) is Reason.KILLED


def test_a_quota_lowered_below_what_is_asked_rejects_at_once():
    world = one_waits()
    assert reason_of(world.do(QuotaChanged(1, "B", {"g": 5}))) is Reason.OVER_QUOTA
