"""From the last release to this one, with its shim in the programs: nothing ends, and nobody loses the place.

The lab of lab.py runs under the shim that is kept in frozen/. The database goes back to what that release had, as far
as migrations lead back, and the next start brings it up again.
"""

from __future__ import annotations

import os
import platform
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.support import ENTRY, environment
from tests.support.appliance import ROOT, Appliance, http, until
from tests.support.tables import begin_with_tables
from tests.upgrade.lab import DATABASE, HOLD, KEY, LAST, SETTINGS, SHIM, WAIT, fill, places, unpacked

needs_the_shim = pytest.mark.skipif(platform.machine() != "x86_64", reason="the frozen shim is for x86-64")
NAMES = [f"job-{number:02}" for number in range(HOLD + WAIT)]


def manage(home: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "DATABASE_"))}
    given = {"GPUSHARE_HOME": str(home), "GPUSHARE_SECRET_KEY": KEY, "GPUSHARE_ENGINE": "process", "PORT": "0"}
    env = kept | given | {"GPUSHARE_GPUS": "sim:1x1GiB"} | environ
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def stop(appliance: Appliance) -> None:
    appliance.process.send_signal(signal.SIGTERM)
    assert appliance.process.wait(60) == 0
    assert appliance.process.stdout is not None
    appliance.process.stdout.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "home", **SETTINGS)
    yield appliance
    appliance.close()


def start(appliance: Appliance, *words: str) -> subprocess.Popen[str]:
    """The command line, as somebody has it open."""
    return subprocess.Popen([*ENTRY, *words], env=environment(appliance.environ), stdout=subprocess.PIPE, text=True)


@needs_the_shim
def test_twenty_containers_of_the_last_release_live_through_an_upgrade(lab: Appliance, tmp_path: Path) -> None:
    fill(lab, unpacked(SHIM, tmp_path / "libgpushare.so"))
    pids = {name: _program(lab, name) for name in NAMES}
    queue = places(lab)
    assert queue == NAMES[HOLD:]
    go = tmp_path / "go"
    talk = f"echo one; while [ ! -e {go} ]; do sleep 0.1; done; echo two"
    follow = start(lab, "run", "--name", "talker", "local", "sh", "-c", talk)
    assert follow.stdout is not None
    assert follow.stdout.readline() == "one\n"

    stop(lab)
    back = manage(lab.home, "migrate", "web", LAST)
    assert back.returncode == 0, back.stderr
    lab.start()

    assert {name: _program(lab, name) for name in NAMES} == pids
    until(lambda: places(lab) == queue)
    assert follow.poll() is None
    go.touch()
    assert follow.stdout.read() == "two\n"
    assert follow.wait(60) == 0
    follow.stdout.close()
    # Its 359 MiB and the 28 left: the first in the queue gets its 350, and 37 are too few for anybody's context.
    lab.api("POST", f"containers/{lab.named(NAMES[0])['id']}/kill/", {})
    until(lambda: places(lab) == queue[1:])
    until(lambda: lab.named(queue[0])["gpus"][0]["used"] >= 350 << 20)


def _program(lab: Appliance, name: str) -> int:
    container = lab.named(name)
    assert container["state"] in ("running", "suspended"), container
    ours = f"{container['id']}".encode()
    (pid,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/environ")
        if ours in _read(path) and _read(path.with_name("comm")) == b"workload\n"
    ]
    return pid


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_last_releases_database_is_understood(tmp_path: Path) -> None:
    """Its programs are gone, as after a boot. What it knew is there, and its audit log is whole."""
    home = tmp_path / "home"
    (home / "database").mkdir(parents=True)
    with closing(sqlite3.connect(home / "database" / "gpushare.sqlite3")) as database:
        database.executescript(unpacked(DATABASE, tmp_path / "dump.sql").read_text())
        suspended = database.execute("SELECT count(*) FROM web_container WHERE suspended_since IS NOT NULL").fetchone()
        keys = [key for (key,) in database.execute("SELECT id FROM web_container ORDER BY name")]
    assert suspended == (WAIT,)
    appliance = Appliance(home, **SETTINGS)
    try:
        found = [appliance.api("GET", f"containers/{uuid.UUID(key)}/") for key in keys]
        assert [container["name"] for container in found] == NAMES
        assert all(container["finished_at"] and container["exit_code"] is None for container in found), found
        assert places(appliance) == []
        (node,) = appliance.api("GET", "nodes/")["results"]
        assert node["alive"]
        figures = http.get(f"{appliance.url}/metrics", headers={"Authorization": f"Bearer {appliance.token}"})
        assert 'gpushare_node_info{node="lab"' in figures.text
        checked = manage(home, "verify_audit")
        assert checked.returncode == 0, checked.stdout + checked.stderr
    finally:
        appliance.close()


@pytest.mark.parametrize("command", ["up", "runscheduler", "runweb"])
def test_a_newer_releases_database_is_refused_untouched(tmp_path: Path, command: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o750)
    place = home / "database" / "gpushare.sqlite3"
    begin_with_tables(place)
    with closing(sqlite3.connect(place)) as database, database:
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('web', '9999_of_a_later_time', '2030-01-01')"
        )
    before = place.read_bytes()
    refused = manage(home, command)
    assert refused.returncode == 1
    assert "The database is of a newer release (it has 9999_of_a_later_time)" in refused.stderr
    assert "restore a backup" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert place.read_bytes() == before
