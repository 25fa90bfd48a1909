"""Planned launches, reservations and launches of the moment together: nobody deadlocks, and everybody is served."""

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.queued import compare
from scheduler.core.events import ContainerEnded, GpuSeen, ReservesChanged
from scheduler.core.invariants import violations
from scheduler.core.people import heads
from scheduler.core.planned.order import Candidate, Queue, Shape
from scheduler.core.state import Mode, Preemption
from tests.core.test_reserved import Booked, booked

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["launch", "plan", "plan", "end", "tick", "reserve", "card"]),
        st.integers(1, 9),
        st.integers(1, 10),
        st.sampled_from(["ada", "bob", "eve"]),
    ),
    max_size=40,
)


class Lab(Booked):
    def __init__(self, policy: str) -> None:
        super().__init__(Preemption(Mode.OFF, able=False), policy)
        self.queue, self.number = Queue(), 100

    def plan(self, owner: str, amount: int, now: float) -> None:
        self.number += 1
        id_ = str(self.number)
        self.queue.put(Candidate(id_, owner, now, Shape(amount), number=self.number, container=id_))

    def begin(self, now: float) -> None:
        """All that may: each has its whole quota at once, and nothing of it is kept for others."""
        for event in self.queue.steps(lambda: self.state, now):
            self.do(event)
        for its, _ in self.queue.promised(self.state):
            self.queue.drop(its.id)
            assert self.granted(self.start(int(its.id), its.shape.quota, now, owner=its.owner)) == [its.id]
            self.begin(now)
            break


@settings(max_examples=150, deadline=None)
@given(STEPS, st.sampled_from(["fair", "fifo", "best-fit"]))
def test_all_begin_and_are_served_once_the_last_reservation_in_the_way_is_over(steps, policy):
    lab, now = Lab(policy), 0.0
    lab.do(GpuSeen(0.0, "g", 10, 10))
    for what, number, amount, owner in steps:
        now += 20.0 * number
        if what == "launch" and str(number) not in lab.state.containers:
            lab.start(number, min(amount, 3), now, owner=owner, quota=amount)
        elif what == "plan":
            lab.plan(owner, amount, now)
        elif what == "end":
            lab.do(ContainerEnded(now, str(number)))
        elif what == "card":
            lab.do(GpuSeen(now, "g", 10, 10))
        elif what == "reserve":
            lab.reserve(booked(amount, now + 30, now + 500, people=frozenset({owner})), now=now)
        else:
            lab.tick(now)
        lab.begin(now)
        assert violations(lab.state) == []
    now += 600  # all that was reserved is over
    lab.do(ReservesChanged(now, lab.state.reserves))
    assert not lab.state.reserves
    for _ in range(len(lab.state.containers) + len(lab.queue.known) + 1):
        now += heads.PATIENCE
        lab.tick(now)
        lab.begin(now)
        waiting = {request.container for request in lab.state.waiting}
        holders = [name for name in lab.state.containers if name not in waiting]
        assert holders or not (waiting or lab.queue.known), "all wait for each other"
        if holders:
            lab.do(ContainerEnded(now, holders[0]))
    assert not lab.queue.known
    assert not lab.state.waiting


def test_sweeps_that_are_queued_leave_host_memory_to_others_and_are_done_in_the_same_time():
    launched, queued = compare(1).values()
    assert queued.idle <= 0.05 * launched.idle
    assert queued.done <= launched.done
