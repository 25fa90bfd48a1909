"""The database of releases that kept it beside everything else moves into its own folder: once, and whole."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from appliance import database
from appliance.database import FILES, NAME, place
from tests.support.appliance import ROOT

WRITES_AND_DIES = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("CREATE TABLE kept (number INTEGER)")
database.executemany("INSERT INTO kept VALUES (?)", [(number,) for number in range(500)])
os.kill(os.getpid(), 9)
"""


def dies_at(line: int, home: Path) -> bool:
    """Moves the database in a process that is killed before that line of the mover. False if it had ended by then."""
    if (pid := os.fork()) == 0:
        left = line

        def at_each_line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename == database.__file__ and event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return at_each_line

        sys.settrace(at_each_line)
        place(home)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def of_before(home: Path) -> Path:
    """A database that was in use when its process was killed: what it had written is in its journal."""
    home.mkdir()
    path = home / NAME
    subprocess.run([sys.executable, "-c", WRITES_AND_DIES, str(path)], check=False)
    assert (home / f"{NAME}-wal").stat().st_size > path.stat().st_size
    return path


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as found:
        (count,) = found.execute("SELECT count(*) FROM kept").fetchone()
    return int(count)


def test_what_was_only_in_the_journal_moves_too(tmp_path):
    home = tmp_path / "home"
    before = of_before(home)
    assert rows(place(home)) == 500
    assert not any((home / name).exists() for name in FILES)
    assert place(home) == home / "database" / before.name  # and stays there
    assert rows(place(home)) == 500


def test_a_move_that_is_killed_at_any_line_is_finished_by_the_next_start(tmp_path):
    of_before(tmp_path / "before")
    line, killed = 0, True
    while killed:
        line += 1
        home = tmp_path / str(line)
        shutil.copytree(tmp_path / "before", home)
        killed = dies_at(line, home)
        assert rows(place(home)) == 500, f"killed at line {line}"
        assert not any((home / name).exists() for name in FILES), f"killed at line {line}"
    assert line > 15


def test_a_database_in_use_is_not_moved_from_under_its_user(tmp_path):
    before = of_before(tmp_path / "home")
    with closing(sqlite3.connect(before)) as user:
        user.execute("SELECT count(*) FROM kept").fetchone()
        with pytest.raises(ImproperlyConfigured, match="Is the appliance still running"):
            place(tmp_path / "home")
        user.execute("INSERT INTO kept VALUES (500)")
        user.commit()
    assert rows(place(tmp_path / "home")) == 501


def test_commands_that_start_at_once_move_it_once(tmp_path):
    of_before(tmp_path / "home")
    move = [sys.executable, "-c", "import sys, pathlib; from appliance.database import place; "
            "place(pathlib.Path(sys.argv[1]))", str(tmp_path / "home")]  # fmt: skip
    several = [subprocess.Popen(move, cwd=ROOT, env=os.environ) for _ in range(4)]
    assert [each.wait(60) for each in several] == [0] * 4
    assert rows(tmp_path / "home" / "database" / NAME) == 500
