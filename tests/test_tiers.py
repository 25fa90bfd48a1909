"""`make test` leaves out what waits for `make test-all`, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import tiers
from tests.support.own_home import ROOT

WAITING = [(reason, each) for reason, prefixes in tiers.WAITING.items() for each in prefixes]


@pytest.mark.parametrize("each", [each for _, each in WAITING])
def test_what_waits_exists(each: str) -> None:
    path, _, test = each.partition("::")
    assert (ROOT / path).exists()
    assert not test or f"def {test}(" in (ROOT / path).read_text()


def test_the_files_that_a_reason_names_stay() -> None:
    """A test that is left out has a reason, and files that the reason names are not left out themselves."""
    for reason in tiers.WAITING:
        for word in reason.replace(",", " ").replace(";", " ").split():
            if word.startswith("tests/") and word.endswith(".py"):
                assert (ROOT / word).exists(), reason
                assert not tiers.waits(word), reason


@pytest.mark.parametrize(
    ("node", "waits"),
    [
        ("tests/browser/test_pages.py::test_one[a]", True),
        ("tests/browser/test_pages_too.py::test_one", False),
        ("tests/scheduler/test_turns.py::test_those_that_compute_share_the_card_by_their_weights", False),
        ("tests/scheduler/test_shares.py::test_it_is_written_down_and_taken_over[x]", True),
        ("tests/scheduler/test_shares.py::test_it_is_written_down_and_taken_over_more", False),
    ],
)
def test_a_name_waits_by_its_file_or_by_itself(node: str, waits: bool) -> None:
    assert tiers.waits(node) is waits


@pytest.mark.parametrize(
    ("words", "ran"),
    [((), {"test_a"}), (("--all",), {"test_a", "test_b"}), (("test_it.py",), {"test_a", "test_b"})],
    ids=["all files", "with --all", "a file that is named"],
)
def test_what_a_run_takes(tmp_path: Path, words: tuple[str, ...], ran: set[str]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: takes long\n")
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_a(): pass\n@pytest.mark.long\ndef test_b(): pass\n")
    plugins = ("no:django", "no:asyncio", "no:cacheprovider", "tests.support.tiers")
    options = [word for name in plugins for word in ("-p", name)]
    asked = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(asked, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True).stdout
    assert {line.partition("::")[2] for line in found.splitlines() if "::" in line} == ran
