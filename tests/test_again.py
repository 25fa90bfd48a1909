"""What failed runs once more, alone; what passes then is flaky, and the list of those stays short."""

import json
from pathlib import Path

import pytest

from tests import again


class Play:
    """A run of pytest with a script: which tests fail in the whole run, and which of them fail alone too."""

    def __init__(self, failing: list[str], twice: tuple[str, ...] = (), code: int = 1) -> None:
        self.failing, self.twice, self.code = failing, twice, code
        self.alone: list[str] = []

    def __call__(self, *words: str) -> int:
        if words[: len(again.ALONE)] == again.ALONE:
            self.alone.append(words[-1])
            return int(words[-1] in self.twice)
        again.FAILED.write_text(json.dumps(dict.fromkeys(self.failing, True)))
        return self.code if self.failing else 0


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(again, "FAILED", tmp_path / "lastfailed")
    return tmp_path / "flaky.txt"


def test_a_run_without_a_failure_runs_nothing_again(flaky: Path) -> None:
    play = Play([])
    assert again.run(["tests"], play, flaky) == 0
    assert play.alone == []
    assert not flaky.exists()


def test_what_passes_alone_is_flaky(flaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play = Play(["tests/a.py::b[one two]", "tests/c.py::d"])
    assert again.run(["tests"], play, flaky) == 0
    assert play.alone == ["tests/a.py::b[one two]", "tests/c.py::d"]
    assert capsys.readouterr().out == "FLAKY: tests/a.py::b[one two]\nFLAKY: tests/c.py::d\n"
    assert again.known(flaky) == play.alone


def test_what_fails_twice_is_a_failure(flaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play = Play(["tests/a.py::b", "tests/c.py::d"], twice=("tests/a.py::b",))
    assert again.run(["tests"], play, flaky) == 1
    assert "FAILED TWICE: tests/a.py::b\nFLAKY: tests/c.py::d\n" in capsys.readouterr().out


def test_many_failures_are_no_chance(flaky: Path) -> None:
    play = Play([f"tests/a.py::b{number}" for number in range(again.MOST + 1)])
    assert again.run(["tests"], play, flaky) == 1
    assert play.alone == []


def test_the_list_may_not_grow(flaky: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flaky.write_text("".join(f"tests/a.py::b{number}\n" for number in range(again.MOST)))
    assert again.run(["tests"], Play(["tests/a.py::b0"]), flaky) == 0  # it stands there already
    assert again.run(["tests"], Play(["tests/c.py::d"]), flaky) == 1
    assert "Mend some of them first" in capsys.readouterr().out


@pytest.mark.parametrize("code", [2, 3, 4, 5], ids=["interrupted", "internal", "usage", "no tests"])
def test_a_run_that_broke_is_not_repeated(flaky: Path, code: int) -> None:
    play = Play(["tests/a.py::b"], code=code)
    assert again.run(["tests"], play, flaky) == code
    assert play.alone == []


def test_failures_of_an_earlier_run_do_not_count(flaky: Path) -> None:
    again.FAILED.write_text('{"tests/old.py::one": true}')
    assert again.run(["tests"], lambda *_: 1, flaky) == 1
    assert not flaky.exists()


def test_the_committed_list_is_short_and_names_tests_that_exist() -> None:
    names = again.known(again.LIST)
    assert len(names) <= again.MOST
    for name in names:
        assert (again.ROOT / name.partition("::")[0]).is_file(), name
