"""Whatever happens, in whatever order: the invariants hold, no call is forgotten, and everything returns at the end.

`pytest --hypothesis-profile=long` takes many more steps (see conftest.py).
"""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from scheduler.core import safety
from scheduler.core.effects import Admitted
from scheduler.core.events import (
    ActivityDetected,
    ContainerAdded,
    ContainerEnded,
    ContainerKilled,
    ContainerPaused,
    GpuSeen,
    Idle,
    OverheadMeasured,
    PolicyChanged,
    PreemptionChanged,
    PriorityChanged,
    QuotaChanged,
    Reordered,
    SessionEnded,
    SessionOpened,
    Ticked,
    WaitedBefore,
)
from scheduler.core.policies import POLICIES
from scheduler.core.state import Mode, Preemption
from tests.support.world import Process, World

pytestmark = pytest.mark.timeout(1800)  # many steps, on a machine that may be busy

GPUS = ("g0", "g1")
CAPACITY = 16
amounts = st.integers(1, CAPACITY)


class Host(RuleBasedStateMachine):
    """A host with two GPUs, and programs that do anything a program can do."""

    containers = Bundle("containers")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.now = 0.0
        self.serial = 0
        self.disturbed = False  # something happened that no decision could have prevented
        for gpu in GPUS:
            self.world.do(GpuSeen(0.0, gpu, CAPACITY))
        self.change_preemption(Mode.ROTATE)

    @property
    def state(self):
        return self.world.state

    # ---- containers come and go ----

    @rule(
        target=containers,
        quotas=st.lists(amounts, min_size=1, max_size=2),
        first=st.sampled_from(GPUS),
        priority=st.integers(-100, 100),
        guaranteed=st.sampled_from((False, False, False, True)),
        fail_fast=st.sampled_from((False, False, False, True)),
        max_wait=st.sampled_from((None, None, 50.0)),
        asks=st.sampled_from((0, 0.5, 1)),
    )
    def launch(self, quotas, first, priority, guaranteed, fail_fast, max_wait, asks):
        self.serial += 1
        name = f"c{self.serial}"
        gpus = (first, *(gpu for gpu in GPUS if gpu != first))
        quota = dict(zip(gpus, quotas, strict=False))
        owner = f"u{self.serial % 3}"
        effects = self.world.do(
            ContainerAdded(self.now, name, quota, owner, priority, guaranteed, fail_fast, max_wait)
        )  # fmt: skip
        if Admitted(name) not in effects:
            return multiple()
        if asks:
            self.open_session(name)
            self.world.need(self.serial, 0, first, max(1, round(asks * quota[first])), self.now)
        return name

    @rule(name=containers)
    def another_session(self, name):
        if name in self.state.containers:
            self.open_session(name)

    def open_session(self, name):
        self.serial += 1
        self.world.processes[self.serial] = Process(name)
        self.world.do(SessionOpened(self.now, self.serial, name))

    @rule(name=consumes(containers))
    def end(self, name):
        gone = [key for key, process in self.world.processes.items() if process.container == name]
        for key in gone:
            del self.world.processes[key]
        self.world.swapped.discard(name)
        self.world.wanted.discard(name)
        self.world.forget_transfer(name)
        self.world.do(ContainerEnded(self.now, name))

    @rule(name=containers)
    def kill(self, name):
        self.world.forget_transfer(name)
        self.world.do(ContainerKilled(self.now, name))

    @rule(name=containers)
    def pause(self, name):
        self.disturbed = True
        self.world.do(ContainerPaused(self.now, name))

    @rule(name=containers)
    def resume(self, name):
        self.world.resume(name, self.now)

    # ---- swapping ----

    @rule(name=containers)
    def swap_out(self, name):
        if name in self.state.containers:
            self.world.swap_out(name, self.now)

    @precondition(lambda self: self.world.swapped - self.world.wanted)
    @rule(data=st.data())
    def want_back(self, data):
        name = data.draw(st.sampled_from(sorted(self.world.swapped - self.world.wanted)))
        if not self.state.containers[name].killed:
            self.world.want_back(name, self.now)

    @precondition(lambda self: self.world.coming or self.world.leaving)
    @rule(data=st.data(), moved=st.sampled_from((True, True, False)))
    def transfer_ends(self, data, moved):
        name = data.draw(st.sampled_from(sorted(self.world.coming | {self.world.leaving} - {None})))
        if not moved:
            self.world.not_moved(name, self.now)
        elif name == self.world.leaving:
            self.world.swap_out(name, self.now)
        else:
            self.world.came_back(name, self.now)

    @rule(mode=st.sampled_from(Mode))
    def change_preemption(self, mode):
        self.world.do(PreemptionChanged(self.now, Preemption(mode, idle=10.0, rotate=50.0, memory=2 * CAPACITY)))

    @rule(name=containers)
    def is_idle(self, name):
        self.world.do(Idle(self.now, name, self.now))

    @rule(name=containers)
    def stirs(self, name):
        known = self.state.containers.get(name)
        if known and not known.paused and not known.killed:
            self.world.stir(name)
            self.world.do(ActivityDetected(self.now, name))

    # ---- processes ----

    def able(self):
        """Those that can act: not frozen. One whose every thread waits can still be ended.

        One that is swapped out can ask, by a thread that asked for headroom before it reached the locked driver.
        """
        alive = self.state.containers
        return sorted(k for k, p in self.world.processes.items() if not alive[p.container].paused)

    @precondition(lambda self: self.able())
    @rule(data=st.data(), amount=amounts)
    def allocate(self, data, amount):
        session = data.draw(st.sampled_from(self.able()))
        gpu = data.draw(st.sampled_from(sorted(self.state.containers[self.world.processes[session].container].quota)))
        self.serial += 1
        self.world.need(session, self.serial, gpu, amount, self.now)

    @precondition(lambda self: self.able())
    @rule(data=st.data(), part=st.floats(0, 1))
    def free(self, data, part):
        session = data.draw(st.sampled_from(self.able()))
        for gpu, used in list(self.world.processes[session].used.items()):
            self.world.free(session, gpu, round(used * part))

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data())
    def process_dies(self, data):
        session = data.draw(st.sampled_from(sorted(self.world.processes)))
        del self.world.processes[session]
        self.world.do(SessionEnded(self.now, session))

    # ---- admins, the card, the clock ----

    @rule(name=containers, quota=amounts)
    def change_quota(self, name, quota):
        if name in self.state.containers:
            kept = self.state.containers[name].quota
            self.world.do(QuotaChanged(self.now, name, {**kept, min(kept): quota}))

    @rule(name=containers, priority=st.integers(-150, 150))
    def change_priority(self, name, priority):
        self.world.do(PriorityChanged(self.now, name, priority))

    @rule(names=st.lists(containers, max_size=3))
    def reorder(self, names):
        self.world.do(Reordered(self.now, tuple(names)))

    @rule(names=st.lists(containers, max_size=3))
    def expect(self, names):
        self.world.do(WaitedBefore(self.now, frozenset(names), self.now + 60.0))

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    def change_policy(self, policy):
        self.world.do(PolicyChanged(self.now, policy))

    @rule(gpu=st.sampled_from(GPUS), capacity=st.integers(0, CAPACITY))
    def foreign_memory(self, gpu, capacity):
        self.disturbed = True
        self.world.do(GpuSeen(self.now, gpu, capacity, most=CAPACITY))

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), change=st.integers(-3, 3))
    def overhead(self, data, change):
        session = data.draw(st.sampled_from(sorted(self.world.processes)))
        process = self.world.processes[session]
        gpu = min(self.state.containers[process.container].quota)
        change = max(change, -process.used[gpu])
        self.disturbed = True
        process.used[gpu] += change
        self.world.do(OverheadMeasured(self.now, session, gpu, change))

    @rule(seconds=st.sampled_from((-5.0, 0.0, 1.0, 60.0)))
    def time_passes(self, seconds):
        self.now += seconds
        self.world.do(Ticked(self.now))

    # ---- what must hold, beyond World.check ----

    @invariant()
    def undisturbed_nobody_passes_a_quota_and_everybody_can_end(self):
        if self.disturbed:
            return
        for gpu in GPUS:
            assert safety.free(self.state, gpu) >= 0
        for container in self.state.containers.values():
            assert all(container.leased.get(gpu, 0) <= quota for gpu, quota in container.quota.items())
        assert safety.completable(self.state, GPUS) == set(self.state.containers)

    def teardown(self):
        """Everything ends in some order; then nothing is left, and every call was answered."""
        for name in list(self.state.containers):
            self.end(name)
        assert not self.state.waiting
        assert not self.state.sessions
        assert not self.state.pressed
        assert all(safety.free(self.state, gpu) == self.state.gpus[gpu].capacity for gpu in GPUS)


TestHost = Host.TestCase
