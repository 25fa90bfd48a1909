"""What a world stands on, its own alone: a folder, a database, a card, and an engine; as new for every round.

Names no part of Django before `open` has said where things are: the settings are read once.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.database import FOLDER, NAME
from appliance.running.web_user import UNUSED
from tests.faults.traced import NOTES

if TYPE_CHECKING:
    from tests.support.dockerd import Dockerd
    from tests.support.postgres import Postgres
    from tests.support.redis_server import Redis

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / ".build"
SMALL = 64 << 20  # bytes
BY_LABEL = 1000 << 20  # bytes of quota, by the label of the image for Docker; a launch that names one is not concerned
OF_A_ROUND = (
    "audit-anchor",
    "scheduler.lock",  # without that an anchor begins
    "clocks",
    "sockets",
    "processes",
    "logs",
    "consoles",
    NOTES,
    "trouble",
    "ballast",
    "grants",
)  # in `home`

# A database is made once and copied, and so is the first admin, whose password takes a third of a second to hash.
_PREPARE = """
import django
django.setup()
from django.core.management import call_command
from web.people.bootstrap import ensure_admin
call_command("migrate", verbosity=0)
ensure_admin()
"""


class Ground:
    """`home`: GPUSHARE_HOME. `docker`: a client of a Docker engine of its own; None with the process engine."""

    image, workload = "local", str(BUILD / "workload")
    docker: Any = None
    dockerd: Dockerd | None = None
    postgres: Postgres | None = None
    redis: Redis | None = None
    small = False  # `home` is a file system of its own that can be filled
    owned = False  # the database's folder is the web user's, so root opens it by a helper (appliance/sqlite_by_owner)

    def __init__(self, home: Path) -> None:
        self.home = home
        self._stack = ExitStack()

    def open(self, engine: str, database: str, *, redis: bool = False, small: bool = False) -> None:
        """Starts what is needed and sets this process's environment."""
        if database == "postgres":  # before the environment is this ground's: it makes a home of its own
            from tests.support.postgres import running_postgres
        self.home.mkdir(parents=True, exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "faults", str(self.home)]
        if small and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            self.small = True
            self._stack.callback(subprocess.run, ["umount", "-l", str(self.home)], check=True)
        os.environ.update({
            "DJANGO_SETTINGS_MODULE": "appliance.settings", "GPUSHARE_HOME": str(self.home),
            "GPUSHARE_GPUS": "sim:1x5GiB", "GPUSHARE_ENGINE": engine, "GPUSHARE_SECRET_KEY": secrets.token_hex(32),
            "PYTHONPATH": _with_root(),
        })  # fmt: skip
        os.environ.pop("DATABASE_URL", None)  # as in `make up`, where the web process has no rights but to this file
        if database == "postgres":
            self.postgres = self._stack.enter_context(running_postgres())
            os.environ["DATABASE_URL"] = self.postgres.url
        if redis:
            from tests.support.redis_server import running_redis

            self.redis = self._stack.enter_context(running_redis())
            os.environ["REDIS_URL"] = self.redis.url
        subprocess.run([sys.executable, "-c", _PREPARE], cwd=ROOT, check=True)
        if self.postgres is None:
            self._database.rename(self.home / "template.sqlite3")
            self.owned = database == "owned"
        else:
            os.environ["DATABASE_URL"] = self.postgres.url.rpartition("/")[0] + "/gpushare"
        if engine == "docker":
            self._start_docker()

    @property
    def _database(self) -> Path:
        return self.home / FOLDER / NAME

    def _start_docker(self) -> None:
        import docker

        from tests.support.dockerd import build_image, private

        self.dockerd = self._stack.enter_context(private())
        self.docker = docker.APIClient(self.dockerd.address, version="auto")
        self._stack.callback(self.docker.close)
        self.image, self.workload = "gpushare/faults:latest", "workload"
        libraries = [BUILD / "libgpushare.so", BUILD / "sim" / "libcuda.so.1"]
        build_image(
            self.docker,
            self.image,
            [BUILD / "workload"],
            mounted=libraries,
            labels={"com.nvidia.memory.limit": str(BY_LABEL)},
        )
        os.environ["GPUSHARE_DOCKER_HOST"] = self.dockerd.address

    def renew(self) -> None:
        """Nothing of an earlier round is left; nothing of it may run. For after `django.setup`."""
        from django.db import connections

        connections.close_all()
        for name in OF_A_ROUND:
            path = self.home / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        if self.docker is not None:
            from tests.support.dockerd import clear

            clear(self.docker)
        if self.postgres is None:
            for left in self._database.parent.iterdir():
                left.unlink()
            shutil.copy(self.home / "template.sqlite3", self._database)
            for path in (self._database.parent, self._database) if self.owned else ():
                os.chown(path, UNUSED, UNUSED)
        else:
            self._copy_in_postgres()

    def _copy_in_postgres(self) -> None:
        import psycopg

        assert self.postgres is not None
        with psycopg.connect(self.postgres.url.replace("/postgres", "/template1", 1), autocommit=True) as server:
            server.execute("DROP DATABASE IF EXISTS gpushare WITH (FORCE)")
            server.execute("CREATE DATABASE gpushare TEMPLATE postgres")

    def keep(self, folder: Path) -> None:
        """Copies what tells how a round went: logs, database, what processes left."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.home, folder, ignore=_not_kept, ignore_dangling_symlinks=True)

    def close(self) -> None:
        self._stack.close()


def _not_kept(folder: str, names: list[str]) -> set[str]:
    large = {"template.sqlite3", "card", "sockets", "hints"} & set(names)
    return large | {name for name in names if Path(folder, name).is_socket()}


def _with_root() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
