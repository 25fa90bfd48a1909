"""Would it fit now; if not, behind whom, and by when at the latest."""

from scheduler.core.arbiter import handle
from scheduler.core.events import ContainerAdded, ContainerPaused, GpuSeen, Needed, SessionOpened
from scheduler.core.forecast import GoesOn, forecast, forecasts, next_after
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
    fits_but = forecast(world(A=6, B=2, C=5).state, {"g": 2}, names=names).explanation
    assert fits_but.startswith("train-2 waits already; "), "a name is written as it is"
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
    assert "no estimate" in answer.explanation


def test_a_quota_that_can_never_be_is_reported_with_the_numbers():
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


def gone_on(state: State, ends: dict[str, float] | None = None, lasts: dict[str, float] | None = None) -> list[GoesOn]:
    return [found for found in forecasts(state, ends or {}, lasts or {}) if found]


def test_the_outlook_names_for_everybody_who_waits_whose_ends_they_wait_for():
    state = world(A=6, B=4, C=5, D=5, E=10).state
    assert gone_on(state) == [
        GoesOn("C", ("A",), (), None),
        GoesOn("D", ("A", "B"), (), None),
        GoesOn("E", ("A", "B", "C", "D"), (), None),
    ]


def test_the_outlook_tells_when_by_time_limits_and_by_how_long_those_who_are_served_last():
    state, limits = world(A=6, B=4, C=10, D=10).state, {"A": 60.0, "B": 20.0}
    first, second = gone_on(state, limits)
    assert (first.after, first.at) == (("B", "A"), 60.0)
    assert second == GoesOn("D", ("B", "A", "C"), (), None)  # how long C lasts is not known
    assert gone_on(state, limits, {"C": 30.0})[-1].at == 90.0


def test_the_outlook_lets_those_end_last_whom_somebody_has_to_resume_first():
    made = world(A=6, B=4, C=4)
    made.do(ContainerPaused(0, "A"))
    assert gone_on(made.state) == [GoesOn("C", ("B",), (), None)]
    made = world(A=10, C=4)
    made.do(ContainerPaused(0, "A"))
    assert gone_on(made.state) == [GoesOn("C", ("A",), ("A",), None)]
