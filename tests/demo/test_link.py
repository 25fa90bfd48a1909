"""The link that a start prints on a terminal, and the demo that waits for who opens it."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.support.constants import with_constants
from tests.support.eventually import PATIENCE
from tests.support.tables import begin_with_tables
from tests.support.terminal import Terminal

# It begins when somebody has signed in, and not by itself.
CONSTANTS = {"appliance.demo.story.PAUSE": 0.3, "appliance.demo.story.SIGN_IN_WITHIN": 600}
ROOT = Path(__file__).resolve().parent.parent.parent


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "DEMO_"))}
    ours = {"GPUSHARE_HOME": str(home), "GPUSHARE_GPUS": "sim:1x5GiB", "GPUSHARE_ENGINE": "process", "PORT": "0"}
    ours |= {"GPUSHARE_LOG": "WARNING", "PYTHONUNBUFFERED": "1"} | with_constants(CONSTANTS)
    return kept | ours


def started(home: Path, command: str) -> Terminal:
    return Terminal([sys.executable, str(ROOT / "manage.py"), command], environment(home), columns=200)


def link_in(shown: str) -> tuple[str, str]:
    """The address and the key."""
    found = re.search(r"(http://\S+/enter/)#([\w-]{43})", shown)
    assert found, shown
    return found[1], found[2]


def opened(address: str, key: str) -> int:
    """As a browser does it; the status of the last answer."""
    with httpx.Client(timeout=PATIENCE) as browser:
        form = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', browser.get(address).text)
        assert form
        answer = browser.post(address, data={"csrfmiddlewaretoken": form[1], "key": key}, follow_redirects=True)
        return answer.status_code


def stop(terminal: Terminal) -> None:
    terminal.type("\x03")
    terminal.exit_code()


@pytest.mark.long
def test_the_demo_begins_when_somebody_has_opened_its_link_and_again_on_enter(tmp_path: Path) -> None:
    with started(tmp_path / "home", "demo") as it:
        shown = it.until("The demo begins when you sign in")
        address, key = link_in(shown)
        time.sleep(2)
        assert "launched" not in it.seen.decode()
        assert opened(address, key) == 200
        it.until("A  holds its memory")
        assert opened(address, key) == 403
        it.until("Every step was observed")
        it.until("Enter plays it again")
        it.type("\r")
        it.until("A  holds its memory")
        it.until("Every step was observed")
        stop(it)
        assert "Traceback" not in it.seen.decode()


def test_a_start_on_a_terminal_prints_a_link_and_elsewhere_none(tmp_path: Path) -> None:
    for name in ("home", "other"):
        begin_with_tables(tmp_path / name / "database/gpushare.sqlite3")
    with started(tmp_path / "home", "up") as it:
        address, key = link_in(it.until("Ctrl-C stops it"))
        assert opened(address, key) == 200
        stop(it)
    command = [sys.executable, str(ROOT / "manage.py"), "up"]
    with subprocess.Popen(command, env=environment(tmp_path / "other"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert "Ctrl-C stops it" in lines[2]
    assert "".join(lines[3:]).startswith("  Card: Simulated GPU (")
    assert lines[4:] == ["  This card is SIMULATED.\n", "  Running: local processes\n"]
    assert "enter/" not in "".join(lines)
