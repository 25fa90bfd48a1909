"""What runs often: a failure is red, time that is over is not, and each file has its turn."""

import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests import often


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files in the order in which they ran, without a load: `fails` fails at its second time, `broken` always."""
    ran: list[str] = []
    clock = [0.0]  # its last is the time

    def play(test: str) -> int:
        ran.append(test)
        if test == "long":
            clock.append(60.0)
        return int(test == "broken" or (test == "fails" and ran.count("fails") == 2))

    monkeypatch.setattr(often, "load", nullcontext)
    monkeypatch.setattr(often, "pytest", play)
    monkeypatch.setattr(often.time, "monotonic", lambda: clock[-1])
    return ran


@pytest.mark.parametrize(
    ("tests", "within", "code", "ran"),
    [
        (["a", "b"], 60.0, 0, ["a", "b"] * 3),
        (["a", "fails"], float("inf"), 1, ["a", "fails"] * 2),
        (["a", "fails"], 60.0, 0, [*["a", "fails"] * 2, "fails"]),
        (["a", "broken"], 60.0, 1, ["a", "broken", "broken"]),
        (["a", "long", "b"], 60.0, 0, ["a", "long"]),
        (["a"], 0.0, 0, []),
        ([], 60.0, 0, []),
    ],
    ids=[
        "all pass",
        "one fails at times",
        "in CI that is said",
        "one fails alone, too",
        "one takes all of the time",
        "no time at all",
        "nothing was changed",
    ],
)
def test_a_failure_is_red_and_a_lack_of_time_is_not(
    played: list[str], tests: list[str], within: float, code: int, ran: list[str]
) -> None:
    assert often.run(tests, within, times=3) == code
    assert played == ran


def test_the_files_that_a_change_touches_are_tests_alone(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "tests").mkdir()
    for name in ("tests/test_old.py", "tests/test_gone.py", "source.py"):
        (tmp_path / name).write_text("1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    assert often.changed(tmp_path) == []
    (tmp_path / "tests/test_gone.py").unlink()
    for name in ("tests/test_old.py", "tests/test_new.py", "tests/helper.py", "source.py"):
        (tmp_path / name).write_text("2\n")
    git("add", ".")
    git("commit", "-qm", "two")
    assert often.changed(tmp_path) == ["tests/test_new.py", "tests/test_old.py"]
