"""Programs on a host with two GPUs, for tests of what `fair` promises whatever they do: they come, ask and end."""

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from scheduler.core.events import ContainerAdded, ContainerEnded, GpuSeen, SessionOpened
from tests.support.world import Process, World

GPUS = ("g0", "g1")
CAPACITY = 12


class Programs(RuleBasedStateMachine):
    """Containers with one process each."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World("fair")
        self.now = 0.0
        self.serial = 0
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
        left = self.world.state.containers[process.container].quota[gpu] - process.used[gpu] - process.out.get(gpu, 0)
        if left > 0 and not process.calls:
            self.serial += 1
            self.world.need(session, self.serial, gpu, max(1, round(left * part)), self.now)

    def session(self, data):
        return data.draw(st.sampled_from(sorted(self.world.processes)))

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), part=st.floats(0.01, 1))
    def ask_for_more(self, data, part):
        session = self.session(data)
        container = self.world.state.containers[self.world.processes[session].container]
        self.ask(session, data.draw(st.sampled_from(sorted(container.quota))), part)

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data())
    def end(self, data):
        name = self.world.processes.pop(self.session(data)).container
        self.world.forget_transfer(name)
        self.world.swapped.discard(name)
        self.world.wanted.discard(name)
        self.world.do(ContainerEnded(self.now, name))
