"""A web side in production, and hosts that join it: each with a PostgreSQL role of its own."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import psycopg

from appliance import envfile
from tests.support.appliance import ROOT, WORKLOAD, http, until
from tests.support.own_home import clean_environ
from tests.support.postgres import Postgres
from tests.support.production import Production, end_all

KEPT = "# of this host\nGPUSHARE_GPUS=sim:1x1GiB\nGPUSHARE_NODE=before\n"


class Site:
    """A web side, and hosts that join it."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.folder, self.url = folder, postgres.database("appliance")
        postgres.ask_for_passwords("appliance_nodes")
        self.main = Production(folder / "main", postgres, DATABASE_URL=self.url)
        self.postgres = postgres
        self.set_up("appliance")
        self.main.manage("shell", "-c", "from web.people.bootstrap import ensure_admin; ensure_admin()")
        self.main.start_web()
        until(self.answers)
        self._schedulers: dict[str, subprocess.Popen[bytes]] = {}

    def set_up(self, database: str) -> str:
        """What an admin of PostgreSQL does once. Returns what psql warns of."""
        return self.postgres.as_admin(database, self.main.manage("node", "setup"))

    def answers(self) -> bool:
        try:
            return http.get(f"http://{self.main.address}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def invite(self, name: str) -> str:
        return self.main.manage("node", "add", name).split()[3]

    def join(self, token: str, name: str) -> subprocess.CompletedProcess[str]:
        """`gpushare-node join`, on the host of that name."""
        file = self.settings(name)
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            file.write_text(KEPT)
        words = ["join", f"http://{self.main.address}", token, "--name", name, "--file", str(file)]
        command = [sys.executable, "-m", "appliance.joining", *words]
        return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)

    def settings(self, name: str) -> Path:
        return self.folder / name / "gpushare.env"

    def joined(self, name: str) -> dict[str, str]:
        """Its settings, once it has joined."""
        done = self.join(self.invite(name), name)
        assert done.returncode == 0, done.stderr
        return envfile.read(self.settings(name))

    def start(self, name: str) -> None:
        """Its scheduler, with what joining has written."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._schedulers[name] = subprocess.Popen(**self._command(name), stdout=log, stderr=log)
        until(lambda: self.sql("SELECT seen_at FROM web_node WHERE name = %s", name) not in ([], [(None,)]))

    def stop(self, name: str) -> None:
        scheduler = self._schedulers.pop(name)
        scheduler.send_signal(signal.SIGTERM)
        assert scheduler.wait(60) in (0, -signal.SIGTERM)

    def refused(self, name: str) -> str:
        """What its scheduler says that cannot start."""
        done = subprocess.run(**self._command(name), text=True, capture_output=True, check=False, timeout=60)
        assert done.returncode, done.stdout
        return done.stderr

    def _command(self, name: str) -> dict[str, Any]:
        environ = {"GPUSHARE_ENGINE": "process", "GPUSHARE_HOME": str(self.folder / name / "home")}
        environ |= envfile.read(self.settings(name))
        command = [sys.executable, "manage.py", "runscheduler"]
        return {"args": command, "cwd": ROOT, "env": clean_environ() | environ}

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """As the owner of everything."""
        with psycopg.connect(self.url) as database:
            done = database.execute(statement, values)
            return done.fetchall() if done.description else []

    def close(self) -> None:
        for name in list(self._schedulers):
            self.stop(name)
        self.main.close()
        end_all(self.folder)


def as_node(settings: dict[str, str]) -> psycopg.Connection[Any]:
    return psycopg.connect(settings["DATABASE_URL"])


def launched(site: Site, name: str, **more: Any) -> str:
    body = {"name": name, "image": "local", "command": [WORKLOAD, "--bytes", "64MiB", "--hold", "3600"], **more}
    container = site.main.launch({"gpu_memory": "300MiB", **body})
    until(lambda: site.main.state(container) == "running")
    return container
