"""The lab that is simulated: PostgreSQL, Redis, so many nodes with cards, and containers on them, as rows.

Django is set up for it: one `Lab` in the life of a process, entered before any model is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psycopg

from scheduler.engines.process import tree
from tests.support.card import ROOT
from tests.support.postgres import running_postgres
from tests.support.redis_server import running_redis

if TYPE_CHECKING:
    from tests.support.site import Site

GIB = 1 << 30
CARD = 80 * GIB
CONNECTIONS = 100  # of PostgreSQL, beyond one a node: the default is 100 for all
SHARED = "1GB"  # PostgreSQL's own memory, of which its packages give 128 MB
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Size:
    """How large the lab is. `busy`: the part of the containers that compute; `waiting`: that wait for memory."""

    nodes: int = 300
    cards: int = 8
    containers: int = 5000
    busy: float = 0.7
    waiting: float = 0.05
    users: int = 100

    def containers_of(self, node: int) -> range:
        """The numbers of those on this node."""
        return range(node * self.containers // self.nodes, (node + 1) * self.containers // self.nodes)


def name_of(node: int) -> str:
    return f"gpu{node:03}"


def uuid_of(node: int, card: int) -> str:
    return f"GPU-{node:03}-{card}"


class Lab:
    def __init__(self, size: Size) -> None:
        self.size = size
        self._stack = ExitStack()

    def __enter__(self) -> Lab:
        self.home = Path(self._stack.enter_context(TemporaryDirectory(prefix="gpushare-scale-")))
        self.postgres = self._stack.enter_context(running_postgres())
        self.redis = self._stack.enter_context(running_redis())
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET max_connections = {self.size.nodes + CONNECTIONS}")
            connection.execute(f"ALTER SYSTEM SET shared_buffers = '{SHARED}'")
        self.postgres.stop()
        self.postgres.start()
        os.environ.update(
            GPUSHARE_HOME=str(self.home), DATABASE_URL=self.postgres.url, REDIS_URL=self.redis.url,
            DJANGO_SETTINGS_MODULE="appliance.settings", GPUSHARE_LOG="WARNING", GPUSHARE_SECRET_KEY="of the lab",
            GPUSHARE_BUDGET_REQUESTS_A_SECOND="100000",
        )  # fmt: skip
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        return self

    def __exit__(self, *_: object) -> None:
        from django.db import connections

        connections.close_all()
        self._stack.close()

    # ---- its rows ----

    def fill(self) -> None:
        """Owners and containers. Nodes and cards make themselves known (schedulers.py)."""
        from django.contrib.auth.models import User
        from django.utils import timezone

        from web.models import Claim, Container, Gpu, Node

        size, now = self.size, timezone.now()
        for node in range(size.nodes):
            Node.objects.filter(name=name_of(node)).update(labels={"rack": f"r{node // 20:02}"})
        owners = User.objects.bulk_create(User(username=f"person-{number:03}") for number in range(size.users))
        nodes = {node.name: node for node in Node.objects.all()}
        gpus = {gpu.uuid: gpu for gpu in Gpu.objects.all()}
        made, claims = [], []
        for node in range(size.nodes):
            for number in size.containers_of(node):
                waits = number % 1000 < 1000 * size.waiting
                row = Container(
                    name=f"train-{number:05}", owner=owners[number % size.users], node=nodes[name_of(node)],
                    image="pytorch/pytorch:2.9", command=["python", "train.py", "--seed", str(number)],
                    gpu_memory=20 * GIB, colour=number % 40, started_at=now, engine="docker", engine_id=f"{number:064}",
                    **({"suspended_since": now, "queue_position": 1, "queue_bytes": GIB,
                        "queue_reason": "It waits for 1 GiB; 512 MiB are free."} if waits else {}),
                )  # fmt: skip
                made.append(row)
                gpu = gpus[uuid_of(node, number % size.cards)]
                claims.append(Claim(container=row, gpu=gpu, quota=20 * GIB, granted=12 * GIB, used=10 * GIB,
                                    peak=11 * GIB, waiting=GIB * waits))  # fmt: skip
        Container.objects.bulk_create(made, batch_size=1000)
        Claim.objects.bulk_create(claims, batch_size=1000)

    # ---- its processes ----

    def schedulers(self, first: int, count: int, *words: str) -> subprocess.Popen[str]:
        """A process that plays these nodes' schedulers; what it measured is a line of JSON (schedulers.py)."""
        size = ",".join(str(getattr(self.size, name)) for name in Size.__dataclass_fields__)
        command = [sys.executable, "-m", "benchmarks.scale.schedulers", size, str(first), str(count), *words]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)

    @contextmanager
    def site(self) -> Iterator[Site]:
        """The real web side."""
        from tests.support.site import running_site

        home = self.home / "web"
        home.mkdir(exist_ok=True)
        with running_site(home, None, **{name: os.environ[name] for name in (
            "DATABASE_URL", "REDIS_URL", "GPUSHARE_SECRET_KEY", "GPUSHARE_BUDGET_REQUESTS_A_SECOND", "GPUSHARE_LOG",
        )}) as site:  # fmt: skip
            yield site

    # ---- what it takes ----

    def query(self, words: str, *values: Any) -> Any:
        """The first value of the first row."""
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            row = connection.execute(words, values).fetchone()
            return row[0] if row else None

    def spent(self) -> dict[str, float]:
        """Seconds of CPU so far: of PostgreSQL, with those of its processes that have ended, and of Redis."""
        first = int(Path(self.postgres._data, "postmaster.pid").read_text().split()[0])
        family = [first, *(each.pid for each in tree.descendants(first))]
        own = sum(cpu_of(pid) for pid in family) + cpu_of(first, ended=True)
        return {"postgres": own, "redis": cpu_of(self.redis._process.pid)}


def cpu_of(pid: int, *, ended: bool = False) -> float:
    """Seconds of CPU that this process has used; `ended`: its children that have ended instead."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, words[13:15] if ended else words[11:13])) / TICK


def memory_of(pid: int) -> int:
    """Bytes of RAM that are this process's own (PSS counts what is shared by its part)."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.split("\nPss:")[1].split()[0]) * 1024


class Watch:
    """CPU that PostgreSQL, Redis and other processes used within."""

    def __init__(self, lab: Lab, **others: int) -> None:
        self._lab, self._others = lab, others

    def _now(self) -> dict[str, float]:
        return self._lab.spent() | {name: cpu_of(pid) for name, pid in self._others.items()}

    def __enter__(self) -> Watch:
        self._before, self._begun = self._now(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.monotonic() - self._begun
        self.cpu = {name: value - self._before[name] for name, value in self._now().items()}
