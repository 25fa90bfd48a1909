"""`make test` leaves out what waits for `make test-all`, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import slow
from tests.support import tiers
from tests.support.own_home import ROOT

ONE_SLOW = min(tiers.SLOW)
WAITING = [(reason, each) for reason, prefixes in tiers.WAITING.items() for each in prefixes]


@pytest.mark.parametrize("each", [each for _, each in WAITING])
def test_a_file_that_waits_exists(each: str) -> None:
    assert (ROOT / each).exists()


def test_each_slow_test_exists_once_and_in_order_and_shows_no_promise_of_make_test() -> None:
    listed = (ROOT / "tests" / "slow.txt").read_text().split()
    assert listed == sorted(set(listed))
    gone = [name for name in listed if name.split("::")[1] not in (ROOT / name.partition("::")[0]).read_text()]
    assert gone == []
    promised = [name for name in listed if not slow.waiting({name: 9.0, f"{name}_more": 0.0}, slow.promises())]
    assert promised == []


def test_what_waits_takes_longest_without_what_its_file_shares() -> None:
    """A set-up of 9 s falls to the first of three; the cases of a test count together."""
    rows = ["10.0 9.0 t.py::a", " 1.9 0.1 t.py::b[1]", "0.5 0.1 t.py::b[2]", "8.0 0.1 t.py::promised[x y]"]
    costs = slow.cost(rows)
    assert costs == pytest.approx({"t.py::a": 1.1, "t.py::b": 2.4, "t.py::promised": 8.0})
    assert slow.waiting(costs, ["t.py::promised"]) == ["t.py::b"]
    assert slow.waiting({"u.py::a": 9.0, "u.py::b": 8.0}, []) == ["u.py::a"]


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
        (f"{ONE_SLOW}[x]", True),
        (f"{ONE_SLOW}_more", False),
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
