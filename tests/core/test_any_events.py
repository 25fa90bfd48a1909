"""Events as no shell would send them: out of order, repeated, late, about nobody, with figures that make no sense."""

from math import inf, nan

import hypothesis.strategies as st
from hypothesis import given

from scheduler.core import events
from scheduler.core.arbiter import handle
from scheduler.core.effects import Granted, Rejected
from scheduler.core.events import Needed
from scheduler.core.invariants import violations
from scheduler.core.policies import POLICIES
from scheduler.core.state import Mode, Preemption, State

now = st.sampled_from((0.0, 1.0, 2.0, 50.0, 700.0, 5000.0, -1.0, nan, inf, -inf))
gpu = st.sampled_from(("g0", "g0", "g1", "nosuch"))
container = st.sampled_from(("a", "b", "c", "nobody"))
session = st.sampled_from((1, 2, 3, 99))
amount = st.sampled_from((-1, 0, 1, 2, 3, 5, 8, 2**64))
size = st.integers(1, 8)
quota = st.dictionaries(st.sampled_from(("g0", "g1")), size, min_size=1) | st.dictionaries(gpu, amount)
seconds = st.none() | st.sampled_from((0.0, 30.0, -1.0, nan, inf))
sessions = st.dictionaries(session, amount)

figure = st.sampled_from((-1.0, 0.0, 1.0, nan, inf))
rule = st.builds(
    Preemption, st.sampled_from(Mode), figure, figure, figure, figure, figure, move_share=figure
) | st.builds(Preemption, st.sampled_from(Mode), st.just(1.0), st.just(10.0), move_share=st.just(1.0))
moved = st.sampled_from(
    (
        events.MoveBegun,
        events.SwappedOut,
        events.SwapInRequested,
        events.CameBack,
        events.NotMoved,
        events.ActivityDetected,
    )
)


anything = st.one_of(
    st.builds(events.GpuSeen, now, gpu, size | amount, st.none() | amount),
    st.builds(events.ContainerAdded, now, container, quota, container, st.integers(-120, 120),
              st.booleans(), st.booleans(), seconds, st.booleans(), st.booleans(), st.booleans()),
    st.builds(events.QuotaChanged, now, container, quota),
    st.builds(events.PriorityChanged, now, container, st.integers(-120, 120)),
    st.builds(events.ContainerPaused, now, container),
    st.builds(events.ContainerResumed, now, container),
    st.builds(lambda event, *what: event(*what), moved, now, container),
    st.builds(events.SwappedOut, now, container, st.dictionaries(gpu, gpu, max_size=2)),
    st.builds(events.GpuDrained, now, gpu, st.booleans()),
    st.builds(events.StaysOnCard, now, container),
    st.builds(events.NotMoved, now, container, seconds.filter(lambda each: each is not None)),
    st.builds(events.Idle, now, container, seconds.filter(lambda each: each is not None)),
    st.builds(events.PreemptionChanged, now, rule),
    st.builds(events.ContainerKilled, now, container),
    st.builds(events.ContainerEnded, now, container),
    st.builds(events.SessionOpened, now, session, container, st.dictionaries(gpu, amount)),
    st.builds(events.SessionEnded, now, session),
    st.builds(Needed, now, session, st.integers(0, 2), gpu, size | amount, seconds, st.booleans()),
    st.builds(Needed, now, session, st.integers(0, 9), st.just("g0"), size),
    st.builds(events.Returned, now, gpu, sessions, st.booleans()),
    st.builds(events.OverheadMeasured, now, session, gpu, st.integers(-9, 9) | amount),
    st.builds(events.PolicyChanged, now, st.sampled_from((*POLICIES, "nosuch"))),
    st.builds(events.Reordered, now, st.lists(container, max_size=3).map(tuple)),
    st.builds(events.WaitedBefore, now, st.frozensets(container), now),
    st.builds(events.WaitOver, now, container),
    st.builds(events.Ticked, now),
)  # fmt: skip
host = (
    events.GpuSeen(0.0, "g0", 8),
    events.GpuSeen(0.0, "g1", 8),
    *(events.ContainerAdded(0.0, name, {"g0": 6}) for name in "ab"),
    events.ContainerAdded(0.0, "c", {"g0": 5, "g1": 4}),
    *(events.SessionOpened(0.0, number, name) for number, name in enumerate("abc", 1)),
)


@given(st.lists(anything, max_size=40))
def test_whatever_comes_nothing_is_raised_and_the_invariants_hold(stream):
    state, _ = handle(State(), *host)
    open_calls = set()
    for event in stream:
        state, effects = handle(state, event)
        assert violations(state) == [], event
        if isinstance(event, Needed):
            open_calls.add((event.session, event.serial))
        open_calls -= {(e.session, e.serial) for e in effects if isinstance(e, Granted | Rejected)}
        assert open_calls == {(r.session, r.serial) for r in state.waiting if not r.back}, "a call was forgotten"
