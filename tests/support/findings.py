"""What a check of `gpushare doctor` has found."""

from collections.abc import Callable, Iterator

from appliance.doctor.finding import Finding, State


def one(check: Callable[[], Iterator[Finding]], state: State = State.WRONG) -> Finding:
    """The one finding that is not fine. It says what it means and what to do."""
    (found,) = [each for each in check() if each.state != State.FINE]
    assert found.state == state, found
    assert found.means
    assert found.do
    return found


def is_fine(check: Callable[[], Iterator[Finding]]) -> bool:
    return all(each.state == State.FINE for each in check())
