"""A PostgreSQL server of the test's own, from the distribution's packages."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from scheduler import proc
from scheduler.engines.process import tree
from tests.support.eventually import until
from tests.support.own_home import made_once
from tests.support.ports import free_port

_FOUND = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
DATA = "data"
# An admin is nobody whose role the appliance has, and that may be the first superuser.
_AS_ANOTHER = """DO $$ BEGIN CREATE ROLE an_admin SUPERUSER; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
SET ROLE an_admin;
"""
BIN = _FOUND[-1].parent if _FOUND else None


class Postgres:
    """`url` is its DATABASE_URL.

    `like`: the data of one that is stopped, with which this one begins, else with one empty database.
    `address`: where it listens.
    """

    def __init__(self, folder: str, like: Path | None = None, address: str = "127.0.0.1") -> None:
        self._address = address
        self._user = _user()
        self._folder, self._data = folder, f"{folder}/{DATA}"
        shutil.chown(folder, self._user)
        self._port = free_port(address)
        self.url = f"postgres://gpushare@{address}:{self._port}/postgres"
        subprocess.run(["cp", "-a", like or made_once("postgres", _initialised) / DATA, self._data], check=True)
        with Path(self._data, "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {address}/24 trust\n")
        self.start()

    def database(self, name: str) -> str:
        """The DATABASE_URL of another database, of a role of that name that is no superuser."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN")
            connection.execute(f"CREATE DATABASE {name} OWNER {name}")
        return f"postgres://{name}@{self._address}:{self._port}/{name}"

    def superusers(self, database: str) -> str:
        """The URL of a database for the superuser, who comes by the socket, whatever is asked for over the network."""
        return f"postgres://gpushare@/{database}?host={self._folder}&port={self._port}"

    def as_admin(self, database: str, script: str) -> str:
        """What an admin of PostgreSQL has psql do. Returns what psql warns of."""
        assert BIN is not None
        psql = [str(BIN / "psql"), "-q", self.superusers(database)]
        done = subprocess.run(psql, input=_AS_ANOTHER + script, text=True, check=False, stderr=subprocess.PIPE)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def ask_for_passwords(self, group: str) -> None:
        """Members of this role have to give theirs; all others are let in."""
        self.let_in(f"host all +{group} {self._address}/24 scram-sha-256")

    def let_in(self, rule: str) -> None:
        """A line of pg_hba.conf, before all others."""
        rules = Path(self._data, "pg_hba.conf")
        rules.write_text(f"{rule}\n{rules.read_text()}")
        self._run("pg_ctl", "reload")

    def start(self) -> None:
        options = f"-p {self._port} -k {self._folder} -c listen_addresses={self._address} -c fsync=off"
        self._run("pg_ctl", "-o", options, "-l", f"{self._folder}/log", "-w", "start")

    def stop(self) -> None:
        """Cuts its connections off; what was committed stays. Does nothing if it is stopped."""
        if Path(self._data, "postmaster.pid").exists():
            self._run("pg_ctl", "-m", "fast", "-w", "stop")

    def kill(self) -> None:
        """`kill -9` of all of it, and nothing of it is left."""
        family = self._signal(signal.SIGKILL)
        until(lambda: not any(proc.stat(pid) for pid in family))

    def freeze(self) -> None:
        """It still takes connections, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> list[int]:
        first = int(Path(f"{self._data}/postmaster.pid").read_text().split()[0])
        family = [first, *(each.pid for each in tree.descendants(first))]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return family

    def _run(self, program: str, *arguments: str) -> None:
        _run(self._user, program, "-D", self._data, *arguments)


def _run(user: str, program: str, *arguments: str) -> None:
    assert BIN is not None
    as_user = user if os.geteuid() == 0 else None
    command = [str(BIN / program), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=as_user, cwd="/")


def _user() -> str:
    """The server refuses to run as root: then it runs as the package's user."""
    return "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def _initialised(folder: Path) -> None:
    shutil.chown(folder, _user())
    words = ("--no-sync", "--wal-segsize=1", "-A", "trust", "-U", "gpushare")
    _run(_user(), "initdb", "-D", str(folder / DATA), *words)


@contextmanager
def running_postgres(like: Path | None = None, address: str = "127.0.0.1") -> Iterator[Postgres]:
    """`address`: where it listens, and lets all in who come from the same network."""
    with TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        postgres = Postgres(folder, like, address)
        try:
            yield postgres
        finally:
            postgres.stop()
