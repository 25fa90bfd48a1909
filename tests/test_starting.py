"""A start that cannot be made says why in a sentence; one that was cut off is in nobody's way."""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.disk import fill, small_disk
from tests.support.tables import begin_with_tables

ROOT = Path(__file__).resolve().parent.parent


def manage(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "GPUSHARE_HOME": str(home), "PORT": "0", "GPUSHARE_ENGINE": "process",
        "GPUSHARE_GPUS": "sim:1x1GiB", "DATABASE_URL": f"sqlite:///{home}/gpushare.sqlite3",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "manage.py", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


def refused(home: Path, command: str, why: str) -> None:
    ended = manage(home, command)
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    assert f"The database does not take what a start has to write: {why}" in ended.stderr


def test_start_on_a_locked_database_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side: each waits for the lock as long as the appliance's own transactions do, here less than 20 s."""
    homes = {command: tmp_path / command for command in ("up", "runscheduler")}
    (tmp_path / "impatient.py").write_text(
        "from appliance.settings import *\n\nDATABASES['default']['OPTIONS']['timeout'] = 2\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "impatient")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as starts:
        for home in homes.values():
            begin_with_tables(home / "gpushare.sqlite3")
            lock = stack.enter_context(contextlib.closing(sqlite3.connect(home / "gpushare.sqlite3")))
            lock.execute("BEGIN IMMEDIATE")
        refusals = [starts.submit(refused, home, command, "database is locked") for command, home in homes.items()]
        for each in refusals:
            each.result()


@pytest.mark.parametrize("command", ["up", "runscheduler", "runweb"])
def test_database_of_a_newer_release_is_refused_untouched(tmp_path: Path, command: str) -> None:
    file = tmp_path / "gpushare.sqlite3"
    begin_with_tables(file)
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('web', '9999_later', '2030')")
    before = file.read_bytes()
    ended = manage(tmp_path, command)
    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), ended.stderr
    assert "The database is of a newer release (it has 9999_later)" in ended.stderr
    assert "restore a backup" in ended.stderr
    assert file.read_bytes() == before


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "4m") as disk:
        yield disk


def test_start_on_a_full_disk_is_refused_in_a_sentence(disk: Path) -> None:
    begin_with_tables(disk / "gpushare.sqlite3")
    assert manage(disk, "check").returncode == 0  # which makes the secret key
    fill(disk, 0)
    refused(disk, "runscheduler", "")


def test_first_start_on_a_full_disk_says_so_and_leaves_nothing_half_written(disk: Path) -> None:
    """First there is no room for the secret key, then for the database, then for the card."""
    kept = ["admin-token", "secret-key"]
    for room in (0, 4, 1200):
        fill(disk, room << 10)
        ended = manage(disk, "up")
        assert (ended.returncode, "Traceback" in ended.stderr) == (1, False), f"{room} KiB: {ended.stderr}"
        assert "what a start" in ended.stderr
        for path in disk.iterdir():
            assert path.suffix != ".part"
            assert not path.name.startswith(("secret-key.", "admin-token."))
            assert path.stat().st_size > 20 or path.name not in kept


def test_secret_key_whose_writing_was_cut_off_is_made_anew_and_then_stays(tmp_path: Path) -> None:
    key = tmp_path / "secret-key"
    key.touch(mode=0o600)
    assert manage(tmp_path, "check").returncode == 0
    kept = key.read_text()
    assert len(kept) > 40
    assert manage(tmp_path, "check").returncode == 0
    assert key.read_text() == kept
    assert (key.stat().st_mode & 0o777, sorted(tmp_path.glob("secret-key*"))) == (0o600, [key])
