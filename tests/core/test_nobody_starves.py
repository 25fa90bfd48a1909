"""The bound that `fair` promises (its header): whoever is first of those due is granted what it asks at the latest when
all who held memory on its GPUs at that moment have ended or given it back, whatever anybody else does."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.core.events import ContainerAdded, ContainerEnded, GpuSeen, SessionOpened, Ticked
from scheduler.core.people import heads
from scheduler.core.state import Request
from tests.support.world import Process, World

pytestmark = pytest.mark.timeout(1800)  # many steps, on a machine that may be busy

GPUS = ("g0", "g1")
CAPACITY = 12


class Host(RuleBasedStateMachine):
    """Containers with one process each come, ask, free and end; time passes in leaps in which calls become due."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World("fair")
        self.now = 0.0
        self.serial = 0
        self.first: tuple[Request, set[str]] | None = None  # the first of those due, and who held memory ever since
        for gpu in GPUS:
            self.world.do(GpuSeen(0.0, gpu, CAPACITY))

    @rule(
        gpus=st.sampled_from((GPUS[:1], GPUS[:1], GPUS)),
        quotas=st.tuples(st.integers(1, CAPACITY), st.integers(1, CAPACITY)),
        priority=st.sampled_from((0, 0, -50, 50)),
        asked=st.sampled_from((1.0, 1.0, 0.5)),
    )
    def launch(self, gpus, quotas, priority, asked):
        self.serial += 1
        name, quota = str(self.serial), dict(zip(gpus, quotas, strict=False))
        self.world.do(ContainerAdded(self.now, name, quota, owner=f"u{self.serial % 2}", priority=priority))
        self.world.do(SessionOpened(self.now, self.serial, name))
        self.world.processes[self.serial] = Process(name)
        self.ask(self.serial, gpus[0], asked)

    def ask(self, session, gpu, part):
        process = self.world.processes[session]
        left = self.world.state.containers[process.container].quota[gpu] - process.used[gpu]
        if left > 0 and not process.calls:
            self.serial += 1
            self.world.need(session, self.serial, gpu, max(1, round(left * part)), self.now)

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), part=st.floats(0.01, 1))
    def ask_for_more(self, data, part):
        session = data.draw(st.sampled_from(sorted(self.world.processes)))
        container = self.world.state.containers[self.world.processes[session].container]
        self.ask(session, data.draw(st.sampled_from(sorted(container.quota))), part)

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), part=st.floats(0, 1))
    def free(self, data, part):
        session = data.draw(st.sampled_from(sorted(self.world.processes)))
        for gpu, used in list(self.world.processes[session].used.items()):
            self.world.free(session, gpu, round(used * part))

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data())
    def end(self, data):
        session = data.draw(st.sampled_from(sorted(self.world.processes)))
        self.world.do(ContainerEnded(self.now, self.world.processes.pop(session).container))

    @rule(seconds=st.sampled_from((1.0, heads.PATIENCE / 2, heads.PATIENCE)))
    def time_passes(self, seconds):
        self.now += seconds
        self.world.do(Ticked(self.now))

    @invariant()
    def the_first_of_those_due_waits_only_for_those_who_held_memory_before_it(self):
        state = self.world.state
        waiting = {(request.session, request.serial): request for request in state.waiting}
        if self.first and (self.first[0].session, self.first[0].serial) not in waiting:
            self.first = None
        if self.first is None:
            for request in state.waiting:
                gpus = state.containers[request.container].quota
                if all(heads.head(state, gpu) is request for gpu in gpus):
                    self.first = request, self.holders(request)
                    break
        if self.first:
            request, held = self.first
            held &= self.holders(request)
            assert held, f"{request} waits for nobody who held memory before it"

    def holders(self, request: Request) -> set[str]:
        """Other containers that hold memory on the GPUs of this call's container, or on those linked to them."""
        state = self.world.state
        near = state.containers[request.container].quota
        return {
            name for gpu in near for name in state.gpus[gpu].members
            if name != request.container and state.containers[name].leased.get(gpu)
        }  # fmt: skip


TestHost = Host.TestCase


def test_newcomer_with_two_gpus_does_not_pass_the_head_of_the_one_that_it_asks_last():
    world = World("fair")
    for gpu in GPUS:
        world.do(GpuSeen(0.0, gpu, CAPACITY))
    wishes = {"holds": {"g0": 1}, "waits": {"g0": CAPACITY}, "comes": {"g1": 1, "g0": 1}}
    for serial, (name, quota) in enumerate(wishes.items(), 1):
        now = 2 * heads.PATIENCE if name == "comes" else 0.0
        world.do(Ticked(now))
        world.do(ContainerAdded(now, name, quota))
        world.do(SessionOpened(now, serial, name))
        world.processes[serial] = Process(name)
        first = next(iter(quota))
        world.need(serial, serial, first, quota[first], now)
    assert not world.state.containers["comes"].leased, "on g0 it would be a holder, and be granted before who waits"
    del world.processes[1]
    world.do(ContainerEnded(2 * heads.PATIENCE, "holds"))
    assert world.state.containers["waits"].leased == {"g0": CAPACITY}
    assert world.state.containers["comes"].leased == {"g1": 1}, "nobody is before it on g1 any more"
