"""`make demo` plays the main job and says by its exit code whether each step was seen."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.dockerd import Dockerd
from tests.support.eventually import PATIENCE, until
from tests.support.tables import begin_with_tables

ROOT = Path(__file__).resolve().parent.parent.parent
STEPS = [
    "A  holds its memory",
    "B  holds its memory",
    "C  allocated inside what is left and is now suspended",
    "D  is suspended at once",
    "B  has ended",
    "C  resumes",
    "D  goes on waiting",
    "A  is killed from outside",
    "D  had its turn and ended, its result checked",
]
Demo = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", "demo"],
            cwd=ROOT,
            env={
                **os.environ,
                "GPUSHARE_HOME": str(tmp_path / "home"),
                "GPUSHARE_GPUS": "sim:1x5GiB",
                "PORT": "0",
                "DEMO_EXIT": "1",
                "http_proxy": "http://127.0.0.1:9",  # nothing of the demo goes there
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def printed_in_order(output: str) -> bool:
    places = [output.find(step) for step in STEPS]
    return -1 not in places and places == sorted(places)


def test_demo_observes_every_step_with_local_processes(demo: Demo) -> None:
    ended = demo(GPUSHARE_ENGINE="process")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert printed_in_order(ended.stdout), ended.stdout
    assert "  This card is SIMULATED.\n  Running: local processes\n" in ended.stdout


def test_a_demo_that_is_stopped_says_what_becomes_of_its_containers(tmp_path: Path) -> None:
    given = {"GPUSHARE_HOME": str(tmp_path), "GPUSHARE_GPUS": "sim:1x5GiB", "GPUSHARE_ENGINE": "process", "PORT": "0"}
    command = [sys.executable, "manage.py", "demo"]
    demo = subprocess.Popen(command, cwd=ROOT, env=os.environ | given, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    assert any("The demo begins when you sign in" in line for line in demo.stdout)
    demo.send_signal(signal.SIGINT)
    said, _ = demo.communicate(timeout=PATIENCE)
    assert (demo.returncode, "Running containers continue" in said) == (0, True)


@pytest.mark.docker
def test_demo_observes_every_step_with_docker(demo: Demo, dockerd: Dockerd, tmp_path: Path) -> None:
    begin_with_tables(tmp_path / "home/database/gpushare.sqlite3")
    ended = demo(GPUSHARE_ENGINE="docker", DOCKER_HOST=dockerd.address)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert printed_in_order(ended.stdout), ended.stdout
    assert "Docker containers" in ended.stdout


def test_demo_fails_if_a_step_is_not_observed(demo: Demo, tmp_path: Path) -> None:
    """On a card that holds all four at once nobody is ever suspended."""
    begin_with_tables(tmp_path / "home/database/gpushare.sqlite3")
    ended = demo(GPUSHARE_ENGINE="process", GPUSHARE_GPUS="sim:1x50GiB")
    assert ended.returncode != 0
    assert "Not observed: demo-c" in ended.stderr
    look = ["pgrep", "-f", str(tmp_path)]
    until(lambda: subprocess.run(look, stdout=subprocess.DEVNULL, check=False).returncode == 1)  # nothing is left
