"""The bound that `fair` promises (its header): whoever is first of those due is granted what it asks at the latest when
all who held memory on its GPUs at that moment have ended or given it back, whatever anybody else does."""

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import invariant, precondition, rule

from scheduler.core.events import ContainerAdded, ContainerEnded, GpuSeen, SessionOpened, Ticked
from scheduler.core.people import heads
from scheduler.core.state import Request
from tests.core.programs import CAPACITY, GPUS, Programs
from tests.support.world import Process, World

pytestmark = pytest.mark.timeout(1800)  # many steps, on a machine that may be busy


class Host(Programs):
    """They free memory as well, and time passes in leaps in which calls become due."""

    def __init__(self) -> None:
        super().__init__()
        self.first: tuple[Request, set[str]] | None = None  # the first of those due, and who held memory ever since

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data(), part=st.floats(0, 1))
    def free(self, data, part):
        session = self.session(data)
        for gpu, used in list(self.world.processes[session].used.items()):
            self.world.free(session, gpu, round(used * part))

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
