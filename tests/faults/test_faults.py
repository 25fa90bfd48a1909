"""A short part of `make faults`, so that the harness itself stays right: a few lines, chosen by a seed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.lines import places
from tests.faults.traced import KEEPER, ROOT, WORKER
from tests.support.postgres import BIN as POSTGRES


def faults(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(400)
def test_facts_are_the_same_when_the_scheduler_dies_before_a_line_of_what_acts(tmp_path: Path) -> None:
    words = ("--count", "4", "--deaths", "2", "--plays", "away", "--only", "scheduler/containers/")
    said = faults("lines", *words, "--out", str(tmp_path))
    assert "4 lines were died before" in said  # two in a round, or alone where the other's death keeps it away
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert not any(result["wrong"] for result in results)
    assert sum(len(result.get("died", ())) > 1 for result in results)
    assert "raises an error that did not occur: raise Problem(" in (tmp_path / "not-come-by.txt").read_text()


@pytest.mark.long
@pytest.mark.timeout(400)
def test_turns_end_as_they_would_when_a_worker_of_the_card_dies_over_one(tmp_path: Path) -> None:
    said = faults("lines", "--count", "1", "--plays", "turns", "--only", f"{WORKER}:", "--out", str(tmp_path))
    assert "1 of 1 rounds" in said
    assert "{'died': 1}" in said


@pytest.mark.timeout(400)
def test_what_a_dead_keeper_leaves_is_accounted_for(tmp_path: Path) -> None:
    said = faults("lines", "--count", "2", "--plays", "", "--only", f"{KEEPER}:1", "--out", str(tmp_path))
    assert "2 of 2 rounds" in said
    assert "'died': " in said  # one of the two may be a way of errors


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(POSTGRES is None, reason="needs the distribution's PostgreSQL")
def test_facts_are_the_same_when_the_scheduler_dies_before_a_line_of_what_hands_over_to_another_node(
    tmp_path: Path,
) -> None:
    words = ("--database", "postgres", "--plays", "handed", "--only", "scheduler/containers/dispatcher.py")
    said = faults("lines", *words, "--count", "1", "--out", str(tmp_path))
    assert "1 of 1 rounds" in said
    assert "{'died': 1}" in said


@pytest.mark.long
@pytest.mark.timeout(400)
def test_clock_can_run_faster_so_that_a_day_takes_an_hour(tmp_path: Path) -> None:
    said = faults("soak", "--hours", "0.04", "--out", str(tmp_path))
    row = next(line for line in said.splitlines() if line.startswith("samples of a second"))
    assert float(row.split()[-1]) > 60  # of six seconds
    row = next(line for line in said.splitlines() if line.startswith("to a context, median"))
    assert float(row.split()[-1]) > 0
    (result,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert os.geteuid() != 0 or result["web"] != "0"  # as where it is used


def test_places_are_bodies_of_functions_of_modules_that_act() -> None:
    found = places("process")
    assert len(found) > 1500
    assert {place.split(":")[0] for place in found} >= {"scheduler/containers/terminator.py", "scheduler/card/turns.py"}
