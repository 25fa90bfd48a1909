"""Would it fit now; if not, behind whom, and by when at the latest."""

from scheduler.core.arbiter import handle
from scheduler.core.events import ContainerAdded, ContainerPaused, GpuSeen, Needed, SessionOpened
from scheduler.core.forecast import forecast, next_after
from scheduler.core.state import State
from tests.support.world import Process, World


def world(**quotas: int) -> World:
    """One GPU "g" of 10; each container asks for its whole quota in turn."""
    made = World()
    made.do(GpuSeen(0, "g", 10))
    for session, (name, quota) in enumerate(quotas.items(), 1):
        made.do(ContainerAdded(0, name, {"g": quota}))
        made.do(SessionOpened(0, session, name))
        made.processes[session] = Process(name)
        made.need(session, 1, "g", quota, 0)
    return made


def test_what_is_free_fits_now():
    answer = forecast(world(A=4).state, {"g": 6})
    assert answer.fits
    assert answer.latest == 0


def test_idle_headroom_counts_as_free():
    state, _ = handle(State(), GpuSeen(0, "g", 10))
    state, _ = handle(state, ContainerAdded(0, "A", {"g": 10}), SessionOpened(0, 1, "A"), Needed(0, 1, 1, "g", 2))
    assert not forecast(state, {"g": 6}).fits
    assert forecast(state, {"g": 6}, idle={"g": 8}).fits


def test_it_names_who_waits_ahead_and_who_holds_the_memory():
    answer = forecast(world(A=6, B=4, C=5).state, {"g": 2})
    assert not answer.fits
    assert answer.behind == ("C",)
    assert answer.holders == ("A", "B")


def test_it_says_by_name_who_waits_already():
    names = {"C": "train-2", "D": "notebook"}
    assert "; train-2 waits already; " in forecast(world(A=6, B=4, C=5).state, {"g": 2}, names=names).explanation
    two = world(A=6, B=4, C=5, D=5).state
    assert "; train-2 and notebook wait already; " in forecast(two, {"g": 2}, names=names).explanation
    four = world(A=6, B=4, C=5, D=5, E=5, F=5).state
    assert "; train-2, notebook, E and F wait already; " in forecast(four, {"g": 2}, names=names).explanation
    five = world(A=6, B=4, C=5, D=5, E=5, F=5, G=5).state
    assert "; train-2, notebook, E and 2 others wait already; " in forecast(five, {"g": 2}, names=names).explanation


def test_time_limits_give_an_upper_bound():
    state = world(A=6, B=4, C=5).state
    assert forecast(state, {"g": 5}, ends={"A": 100.0, "B": 50.0, "C": 300.0}).latest == 100.0
    assert forecast(state, {"g": 6}, ends={"A": 100.0, "B": 50.0, "C": 300.0}).latest == 300.0


def test_without_a_time_limit_it_says_that_nobody_can_know():
    answer = forecast(world(A=6, B=4).state, {"g": 5}, ends={"B": 50.0})
    assert answer.possible
    assert answer.latest is None
    assert "cannot be known" in answer.explanation


def test_a_quota_that_can_never_be_is_told_with_the_numbers():
    answer = forecast(world().state, {"g": 11})
    assert not answer.possible
    assert "11 bytes" in answer.explanation
    assert "10 bytes" in answer.explanation


def test_it_says_whose_end_lets_a_call_go_on():
    state = world(A=6, B=4, C=5).state  # C waits for 5; A's 6 are enough, B's 4 are not
    assert next_after(state, state.waiting[0], {}) == "A"


def test_of_several_it_names_the_one_that_a_time_limit_ends_first():
    state = world(A=5, B=5, C=5).state
    assert next_after(state, state.waiting[0], {"B": 50.0}) == "B"
    assert next_after(state, state.waiting[0], {"A": 40.0, "B": 50.0}) == "A"


def test_it_names_nobody_who_is_paused_or_whose_end_is_not_enough():
    made = world(A=5, B=5, C=6)
    assert next_after(made.state, made.state.waiting[0], {}) is None
    made = world(A=6, B=4, C=5)
    made.do(ContainerPaused(0, "A"))
    assert next_after(made.state, made.state.waiting[0], {}) is None
