import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tests.cli.support import ENTRY, environment
from tests.support.appliance import ROOT, Appliance
from tests.support.eventually import PATIENCE

EXAMPLES = ROOT / "examples"


Meanwhile = Callable[[Callable[[], str]], None]


class Run(Protocol):
    def __call__(self, *words: str, code: int = 0, meanwhile: Meanwhile | None = None) -> str: ...


@pytest.fixture(scope="package")
def shared_appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    running = Appliance(tmp_path_factory.mktemp("examples") / "var")
    yield running
    running.close()


@pytest.fixture
def appliance(shared_appliance: Appliance) -> Iterator[Appliance]:
    """One appliance with a card of 1 GiB serves all tests; each leaves it without living containers."""
    yield shared_appliance
    shared_appliance.end_all()


@pytest.fixture
def environ(appliance: Appliance, tmp_path: Path) -> dict[str, str]:
    """As a person's who is logged in: `gpushare` is a program, and Python has httpx."""
    launcher = tmp_path / "bin" / "gpushare"
    launcher.parent.mkdir()
    launcher.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in ENTRY) + ' "$@"\n')
    launcher.chmod(0o755)
    path = f"{launcher.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return environment(appliance.environ | {"PATH": path, "HOME": str(tmp_path)})


@pytest.fixture
def run(environ: dict[str, str], tmp_path: Path) -> Run:
    """Runs an example to its end, in a folder of its own, and returns what it printed, errors too.

    `meanwhile` steers what it looks at; it is given a function that returns what was printed so far.
    """

    def run(*words: str, code: int = 0, meanwhile: Meanwhile | None = None) -> str:
        path = tmp_path / "said"
        with path.open("w") as said:
            process = subprocess.Popen(
                [str(EXAMPLES / words[0]), *words[1:]], env=environ | {"PYTHONUNBUFFERED": "1"}, cwd=tmp_path,
                stdout=said, stderr=said,
            )  # fmt: skip
        try:
            if meanwhile is not None:
                meanwhile(path.read_text)
            ended = process.wait(2 * PATIENCE)
        finally:
            process.kill()
            process.wait()
        assert ended == code, path.read_text()
        return path.read_text()

    return run
