"""A short part of `make faults`, so that the harness itself stays right: a few lines, chosen by a seed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.lines import places
from tests.faults.traced import KEEPER, ROOT


def faults(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults", "lines", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(400)
def test_facts_are_the_same_when_the_scheduler_dies_before_a_line_of_what_acts() -> None:
    assert "3 lines" in faults("--count", "3", "--seed", "7", "--only", "scheduler/containers/")


@pytest.mark.timeout(400)
def test_what_a_dead_keeper_leaves_is_accounted_for() -> None:
    assert "2 lines" in faults("--count", "2", "--seed", "7", "--only", KEEPER)


def test_places_are_bodies_of_functions_of_modules_that_act() -> None:
    found = places("process")
    assert len(found) > 1500
    assert {place.split(":")[0] for place in found} >= {"scheduler/containers/ending.py", "scheduler/store/behind.py"}
