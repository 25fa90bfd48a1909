"""packaging/systemd: judged by systemd itself, offline; and the words that the services say to it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.appliance import ROOT
from tests.support.tables import begin_with_tables

UNITS = ROOT / "packaging" / "systemd"
SCORES = {  # docs/production.md
    "gpushare-web": 1.3,
    "gpushare-door": 1.3,
    "gpushare-backup": 3.0,
    "gpushare-scheduler": 6.0,
    "gpushare": 6.3,
}
ANALYZE = shutil.which("systemd-analyze")
judged = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")


@judged
@pytest.mark.parametrize("unit", SCORES)
def test_a_unit_may_do_no_more_than_the_documents_say(unit: str) -> None:
    result = subprocess.run([str(ANALYZE), "security", "--offline=yes", f"--threshold={10 * SCORES[unit]:.0f}",
                           str(UNITS / f"{unit}.service")], capture_output=True, text=True, check=False)  # fmt: skip
    assert result.returncode == 0, result.stdout[-300:]
    assert str(SCORES[unit]) in (ROOT / "docs/production.md").read_text()


@judged
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():  # with programs that are there
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/gpushare/.venv/bin/python", sys.executable))
    result = subprocess.run([str(ANALYZE), "verify", "--man=no", *map(str, tmp_path.iterdir())],
                          capture_output=True, text=True, check=False)  # fmt: skip
    ours = [line for line in result.stderr.splitlines() if "gpushare" in line]
    assert (result.returncode, ours) == (0, [])


def test_every_command_of_a_unit_is_one_of_ours() -> None:
    for unit in UNITS.glob("*.service"):
        commands = re.findall(r"manage\.py (\w+)", unit.read_text())
        assert commands
        for command in commands:
            known = [*ROOT.glob(f"*/management/commands/{command}.py")]
            assert known or command == "migrate", command


@contextmanager
def listening() -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """Where a service speaks to systemd, and the environment that leads it there, with a home of its own."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with TemporaryDirectory(prefix="gs-", dir="/tmp") as home, one as heard:
        heard.bind(f"{home}/notify")
        heard.settimeout(60)
        yield heard, {"GPUSHARE_HOME": home, "NOTIFY_SOCKET": f"{home}/notify", "WATCHDOG_USEC": "400000"}


@pytest.mark.parametrize("command", ["runscheduler", "up"])
def test_systemd_hears_when_it_is_ready_that_it_decides_and_when_it_stops(command: str) -> None:
    with listening() as (heard, said_to):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "DATABASE_"))}
        environ = kept | said_to | {"GPUSHARE_GPUS": "sim:1x1GiB", "GPUSHARE_ENGINE": "process", "PORT": "0"}
        begin_with_tables(Path(said_to["GPUSHARE_HOME"], "database/gpushare.sqlite3"))
        process = subprocess.Popen(
            [sys.executable, "manage.py", command], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL
        )
        try:
            said: set[bytes] = set()
            while said != {b"READY=1", b"WATCHDOG=1"}:  # fails if one of them never comes, or something else does
                said.add(heard.recv(100))
                assert said <= {b"READY=1", b"WATCHDOG=1"}
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        heard.setblocking(False)
        last = b""
        while last != b"STOPPING=1":
            last = heard.recv(100)  # fails if it never said so


def test_a_scheduler_that_cannot_decide_is_silent() -> None:
    """The loop turns, and the core refuses: systemd hears nothing, and starts another."""
    prelude = """
import os, django
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings"); django.setup()
import asyncio
from scheduler import notify, parts, worker
class Broken:
    def now(self): return 0.0
    def tell(self, event): raise RuntimeError("it cannot decide")
scheduler = worker.Scheduler(); scheduler.broker = Broken()
async def main():
    part = parts.Part("systemd", scheduler.prove, every=notify.watchdog() / 4)
    await asyncio.wait_for(part.keep_going(asyncio.Event()), 2.5)
try: asyncio.run(main())
except TimeoutError: notify.tell("END")
"""
    with listening() as (heard, said_to):
        environ = os.environ | said_to
        subprocess.run([sys.executable, "-c", prelude], cwd=ROOT, env=environ, check=True, capture_output=True)
        assert heard.recv(100) == b"END"
