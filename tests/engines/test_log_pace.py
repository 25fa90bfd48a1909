"""A container's output is copied no faster than its budget: the engine and the copier work for the others, too."""

import pytest

from scheduler.engines.docker import logs
from scheduler.engines.docker.logs import InAll, paced


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BYTES_A_SECOND", 1000)
    monkeypatch.setattr(logs, "LINES_A_SECOND", 10)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.hurry = False

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.hurry


def seconds(messages: list[bytes], clock: Clock) -> float:
    assert list(paced(messages, InAll(1e9, 0.0), clock.wait, clock)) == messages, "nothing is lost"
    return clock.now


def test_one_second_of_output_is_copied_at_once():
    assert seconds([b"x" * 100] * 10, Clock()) == 0


def test_more_bytes_than_that_take_their_time():
    assert 3.9 < seconds([b"x" * 500] * 10, Clock()) < 4.1


def test_more_lines_take_theirs_however_short_they_are():
    assert 8.9 < seconds([b""] * 100, Clock()) < 9.1


def test_all_containers_lines_together_are_no_more_however_many_print():
    clock, in_all = Clock(), InAll(10, 0.0)
    prints = [paced(iter([b""] * 5), in_all, clock.wait, clock) for _ in range(10)]
    assert sum(len(list(messages)) for messages in prints) == 50, "nothing is lost"
    assert 3.9 < clock.now < 4.1


def test_one_message_larger_than_a_seconds_budget_passes():
    assert seconds([b"x" * 16_000] * 2, Clock()) > 0


def test_the_rest_of_an_ended_container_is_copied_at_once():
    clock = Clock()
    clock.hurry = True
    assert seconds([b"x" * 500] * 1000, clock) < 1.1
