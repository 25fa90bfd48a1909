"""A lab's people on a simulated clock; a hundred weeks and days of them are in docs/deciding.md."""

from dataclasses import replace

import pytest

from benchmarks.simulation import people
from benchmarks.simulation.lab import Turns, play
from benchmarks.simulation.people import DAY, HOUR, LABS, SHARE, jain, lab_run
from benchmarks.simulation.programs import GIB, Program
from benchmarks.simulation.simulate import run
from benchmarks.simulation.workloads import paper
from scheduler.core import fair
from scheduler.core.people import heads


def test_in_a_saturated_lab_each_person_has_what_is_due(monkeypatch):
    monkeypatch.setitem(LABS, "week", replace(LABS["week, large"], until=1.5 * DAY))
    was, now = (lab_run("week", 0, is_before=is_before) for is_before in (True, False))
    assert jain(was.held) < 0.8
    assert jain(now.held) > 0.95
    assert jain(now.computed) > 0.9
    assert now.waits["p7"] < 0.6 * was.waits["p7"]
    assert now.jobs >= 0.95 * was.jobs
    assert now.moving <= 0.005


def test_what_others_could_have_had_is_what_whole_containers_of_theirs_fit_into():
    """Five of 2 GiB fill a card of 10, and each of three people is due a third: one of 3 would fit, one of 8 not."""
    sizes = {"many": (2,) * 5, "one": (3,), "two": (8,)}
    all_ = [(owner, size * GIB) for owner, its in sizes.items() for size in its]
    jobs = [Program("job", place, size, ((0.0, HOUR),), owner=owner) for place, (owner, size) in enumerate(all_)]
    day = play(jobs, (10 * GIB,), SHARE, Turns.PEOPLE, until=60.0)
    assert day.held["many"] > 0
    assert day.least["many"] == pytest.approx(0.7 * day.held["many"])


def test_a_run_that_is_cut_goes_on_with_the_seeds_that_have_no_file(monkeypatch, tmp_path):
    """Each seed's file has what a run in one go would have found."""
    monkeypatch.setitem(LABS, "week", replace(LABS["week"], until=0.1 * DAY))
    monkeypatch.setattr(people, "RUNS", {("lab_run", "week"): lab_run})
    people.write([1], 1, tmp_path)
    (tmp_path / "2.unfinished").write_text("{")
    first = (tmp_path / "seed-001.json").stat().st_mtime_ns
    people.write([1, 2], 1, tmp_path)
    assert (tmp_path / "seed-001.json").stat().st_mtime_ns == first
    assert people.read(tmp_path) == [found for _, found in people.measure([1, 2], 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-001.json", "seed-002.json"]


def test_one_persons_jobs_are_decided_as_if_there_were_no_people(monkeypatch):
    """The paper's workload of one owner, to the last bit; with what compares people taken out."""
    jobs = [[replace(job, owner=owner) for job in paper(38, 1)] for owner in ("", "ann")]
    outcomes = {run("fair", its, 1) for its in jobs}
    for name in ("chosen_of", "ratios"):
        monkeypatch.setattr(heads, name, None)
    monkeypatch.setattr(fair.sharing, "held_back_by", None)
    outcomes |= {run("fair", its, 1) for its in jobs}
    assert outcomes == {people.simulate.Outcome(*FIGURES)}


# Of commit 63155d52, before there were people: finish, mean suspended, longest wait.
FIGURES = (318.0, 12.578947368421053, 203.0, False)


@pytest.mark.parametrize("several", ["2", "12"])
def test_the_papers_workload_hardly_changes_with_several_people(several):
    was, now = (people.paper_run(several, 0, is_before=is_before) for is_before in (True, False))
    assert now == pytest.approx(was, rel=0.005)
