"""The bound that `rotate` promises under `fair` (docs/deciding.md): who is first of those due, and has waited for long,
waits for nobody who has held for as long since, but for those that may not go and those that could not be moved."""

from math import inf

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import precondition, rule

from scheduler.core.events import ActivityDetected, Idle, PreemptionChanged, Ticked
from scheduler.core.people import heads
from scheduler.core.state import Container, Mode, Preemption, Request
from tests.core.programs import Programs

pytestmark = pytest.mark.timeout(1800)  # many steps, on a machine that may be busy

LONG = heads.PATIENCE


class Host(Programs):
    """They are idle and stir; transfers end well or not; time passes in leaps."""

    def __init__(self) -> None:
        super().__init__()
        self.first: tuple[int, int] | None = None  # the first of those due
        self.since = 0.0  # it has been that, and has waited for long
        self.arriving: set[str] = set()  # who was on its way back then: it holds from its arrival on
        self.world.do(
            PreemptionChanged(0.0, Preemption(Mode.ROTATE, idle=LONG, rotate=LONG, out=inf, back=inf, least=0.0))
        )

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
