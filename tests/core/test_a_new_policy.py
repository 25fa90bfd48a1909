"""A newcomer's walk: a policy is one function and one entry in the table. What decides, explores, simulates and
describes finds it there, and that it cannot bring about a deadlock is not its own doing.

It stands here and not in the table because nobody has asked for it: `fair` lets small calls pass as well, with a bound.
"""

from collections.abc import Iterable, Sequence

import pytest

from benchmarks.simulation.exploring.explorer import explore, hosts
from benchmarks.simulation.simulate import run
from benchmarks.simulation.workloads import bound, paper
from scheduler.core.policies import POLICIES, Policy, described
from scheduler.core.state import Request, State
from tests.core.test_policies import Queue

NAME = "smallest-first"


def _smallest_first(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    return sorted(waiting, key=lambda request: request.bytes)


@pytest.fixture(autouse=True)
def policy(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "The smallest call is served first.",
        "No limit: a large call waits for as long as smaller ones come.",
        "A test.",
    )
    monkeypatch.setitem(POLICIES, NAME, Policy(_smallest_first, *words))


def test_its_order_is_the_one_in_which_calls_are_served():
    assert Queue(NAME, a=60, b=50, c=20, d=30).end("holder") == ["c", "d", "b"]


def test_nobody_is_stuck_under_it_whatever_happens():
    assert sum(explore(host) for host in hosts(NAME, 3, 2, gpus=1, pauses=False, changes=False)) >= 50


def test_the_papers_workload_ends_under_it():
    jobs = paper(24, 1)
    outcome = run(NAME, jobs, seed=1)
    assert not outcome.deadlocked
    assert outcome.finish >= bound(jobs)


def test_pages_and_rest_describe_it():
    last = described()[-1]
    assert (last["name"], last["explanation"]) == (NAME, "The smallest call is served first.")
