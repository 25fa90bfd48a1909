"""The bound that `rotate` promises under `fair` (docs/deciding.md): who is first of those due, and has waited for long,
waits for nobody who has held for as long since, but for those that may not go and those that could not be moved."""

from math import inf

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from scheduler.core.events import (
    ActivityDetected,
    ContainerAdded,
    ContainerEnded,
    GpuSeen,
    Idle,
    PreemptionChanged,
    SessionOpened,
    Ticked,
)
from scheduler.core.people import heads
from scheduler.core.state import Container, Mode, Preemption, Request
from tests.support.world import Process, World

pytestmark = pytest.mark.timeout(1800)  # many steps, on a machine that may be busy

GPUS = ("g0", "g1")
CAPACITY = 12
LONG = heads.PATIENCE


class Host(RuleBasedStateMachine):
    """Containers with one process each come, ask, free and end; transfers end well or not; time passes in leaps."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World("fair")
        self.now = 0.0
        self.serial = 0
        self.first: tuple[int, int] | None = None  # the first of those due
        self.since = 0.0  # it has been that, and has waited for long
        self.arriving: set[str] = set()  # who was on its way back then: it holds from its arrival on
        for gpu in GPUS:
            self.world.do(GpuSeen(0.0, gpu, CAPACITY))
        self.world.do(
            PreemptionChanged(0.0, Preemption(Mode.ROTATE, idle=LONG, rotate=LONG, out=inf, back=inf, least=0.0))
        )

    # ---- containers and their processes ----

    @rule(
        gpus=st.sampled_from((GPUS[:1], GPUS[:1], GPUS)),
        quotas=st.tuples(st.integers(1, CAPACITY), st.integers(1, CAPACITY)),
        priority=st.sampled_from((0, 0, 0, -50, 50)),
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

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), stirs=st.booleans())
    def is_idle_or_stirs(self, data, stirs):
        name = self.world.processes[self.session(data)].container
        if stirs:
            self.world.stir(name)
        self.world.do(ActivityDetected(self.now, name) if stirs else Idle(self.now, name, self.now))

    # ---- transfers and the clock ----

    @precondition(lambda self: self.world.coming or self.world.leaving)
    @rule(moved=st.sampled_from((True, True, True, False)))
    def transfer_ends(self, moved):
        name = self.world.leaving or min(self.world.coming)
        if not moved:
            self.world.not_moved(name, self.now)
        elif name == self.world.leaving:
            self.world.swap_out(name, self.now)
        else:
            self.world.came_back(name, self.now)

    @rule(seconds=st.sampled_from((1.0, LONG / 2, LONG, LONG)))
    def time_passes(self, seconds):
        self.now += seconds
        self.world.do(Ticked(self.now))
        self.look()

    def look(self) -> None:
        """Whether somebody waits for one that should have gone: judged as the arbiter judges, when time has passed."""
        state = self.world.state
        first = next((r for r in state.waiting if self.is_first(r) and self.now - r.since >= LONG), None)
        if first is None or (first.session, first.serial) != self.first:
            self.first, self.since = (first.session, first.serial) if first else None, self.now
            self.arriving = set(self.world.coming)
        if self.arriving:
            self.since = self.now
            self.arriving &= self.world.coming
        if first is None or self.world.leaving or self.world.coming or self.now < self.since + LONG:
            return
        old = [each for each in state.containers.values() if self.holds_before(each, first)]
        waits = state.containers[first.container]
        stay = [each.id for each in old if each.priority > waits.priority or each.stays_until > self.now]
        assert stay, f"{first} waits for {[each.id for each in old]}, and nobody gives way"

    def is_first(self, request: Request) -> bool:
        state = self.world.state
        return all(heads.head(state, gpu) is request for gpu in state.containers[request.container].quota)

    def holds_before(self, container: Container, request: Request) -> bool:
        near = self.world.state.containers[request.container].quota
        held = container.held_since <= self.since and any(container.leased.get(gpu) for gpu in near)
        return held and container.id != request.container


TestHost = Host.TestCase
