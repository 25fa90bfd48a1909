"""What giving way is worth in a lab's day, what it costs, and that it moves nobody where that would win nothing."""

from statistics import fmean

import pytest

from benchmarks.simulation import __main__ as command
from benchmarks.simulation.day import LABS, PAPERS, RULES, measure, programs
from benchmarks.simulation.lab import play
from benchmarks.simulation.programs import GIB, Program, takes
from benchmarks.simulation.simulate import run
from benchmarks.simulation.workloads import CAPACITY, paper
from scheduler.core.state import Preemption

SEEDS = 6


@pytest.fixture(scope="module")
def found():
    """The lab with one card; a hundred days of both labs are in docs/deciding.md."""
    days = [programs(LABS[0], seed) for seed in range(SEEDS)]
    return {rule: measure(days, LABS[0].cards, RULES[rule]) for rule in ("off", "idle, 10 min", "rotate, 10 min")}


def test_with_idle_a_container_waits_for_less_than_a_quarter_and_nobody_longer(found):
    assert found["idle, 10 min"].suspended <= 0.25 * found["off"].suspended
    pairs = zip(found["idle, 10 min"].days, found["off"].days, strict=True)
    assert all(idle <= 1.1 * off for idle, off in pairs)


def test_with_rotate_nobody_waits_beyond_the_bound(found):
    assert found["rotate, 10 min"].bound <= 1
    assert fmean(found["rotate, 10 min"].days) < 0.25 * fmean(found["off"].days)


def test_transfers_take_a_fiftieth_of_the_time_at_most(found):
    assert 0 < found["idle, 10 min"].moving <= 0.02
    assert 0 < found["rotate, 10 min"].moving <= 0.02


@pytest.mark.parametrize("rule", PAPERS)
def test_the_papers_workload_is_left_alone(rule):
    """Its jobs are no longer than the transfers: with every rule all is as the plain simulation has it."""
    for seed in range(3):
        jobs = paper(30, seed)
        outcome = run("fair", jobs, seed)
        programs_ = [Program("job", job.arrives, job.size, ((0.0, job.seconds),)) for job in jobs]
        day = play(programs_, (CAPACITY,), PAPERS[rule])
        assert day.outs == 0
        assert day.finish == outcome.finish
        assert sum(stall.seconds for stall in day.stalls) / len(jobs) == pytest.approx(outcome.suspended)


def test_what_is_stopped_goes_on_where_it_was():
    """Two trainings of more than half a card each, an hour long, take turns; nothing of what was computed is lost."""
    its = [Program("training", 0.0, 50 * GIB, ((0.0, 3600.0),)) for _ in range(2)]
    day = play(its, (80 * GIB,), RULES["rotate, 30 min"])
    assert day.outs >= 2
    assert day.finish == pytest.approx(2 * 3600 + day.moving, abs=60)
    alone = play(its, (80 * GIB,), Preemption())
    assert alone.finish == 7200
    assert max(stall.seconds for stall in day.stalls) < 3600


def test_transfers_take_what_was_measured():
    assert takes(4 * GIB, back=False, first=True) == pytest.approx(5.6)
    assert takes(40 * GIB, back=True, first=False) == pytest.approx(6.9)
    assert 8.6 < takes(20 * GIB, back=False, first=False) < 20
    assert takes(60 * GIB, back=False, first=False) > 20
    assert 0 < takes(GIB // 8, back=True, first=False) < 1.3


def test_the_command_prints_a_table_for_each(capsys):
    command.main(["--day", "--seeds=1"])
    output = capsys.readouterr().out
    assert [part.split("  ")[0] for part in output.split("\n\n")[1:]] == ["80 GiB", "2 x 141 GiB", "paper, N=18 to 38"]
    assert output.count("rotate, 10 min") == 2
