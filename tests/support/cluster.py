"""One appliance of several nodes: a web process, a scheduler for each node, one PostgreSQL, one Redis.

Each node has a GPUSHARE_HOME, simulated cards and local processes of its own; all of them are on this machine.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.support.appliance import ROOT, WORKLOAD, followed, http, until
from tests.support.own_home import clean_environ
from tests.support.postgres import Postgres, running_postgres
from tests.support.redis_server import Redis, running_redis
from tests.support.tables import with_tables
from web.relay.paths import short
from web.sizes import parse_size

CONTEXT = 66 << 20  # bytes, on a simulated card


class Cluster:
    """`cards`: GPUSHARE_GPUS by node. `address`: where nodes reach the web side. Nothing runs until it is started; the
    database has its tables."""

    def __init__(
        self, folder: Path, postgres: Postgres, redis: Redis, cards: Mapping[str, str], address: str = "127.0.0.1"
    ) -> None:
        self.folder, self.postgres, self.redis, self.cards = folder, postgres, redis, dict(cards)
        self._common = clean_environ() | {
            "GPUSHARE_ENGINE": "process",
            "GPUSHARE_POLICY": "fifo",
            "GPUSHARE_SECRET_KEY": "the same for all of them",
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
            "GPUSHARE_ALLOWED_HOSTS": address,
        }
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._listener = socket.create_server((address, 0))
        self.url = f"http://{address}:{self._listener.getsockname()[1]}"
        self.tokens = {"": ""}

    # ---- its processes ----

    def home(self, name: str) -> Path:
        return self.folder / name

    def environ(self, name: str, **more: str) -> dict[str, str]:
        cards = {"GPUSHARE_GPUS": self.cards[name], "GPUSHARE_WEB": self.url} if name in self.cards else {}
        return self._common | {"GPUSHARE_HOME": str(self.home(name)), "GPUSHARE_NODE": name} | cards | more

    def start_web(self) -> None:
        number = self._listener.fileno()
        self._start("web", ["runweb", "--fd", str(number)], self.environ("web"), pass_fds=[number])

    def start(self, node: str, **environ: str) -> None:
        """A node's scheduler. Does not wait for it."""
        self._start(node, ["runscheduler"], self.environ(node, **environ))

    def _start(self, name: str, words: list[str], environ: dict[str, str], **options: Any) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._services[name] = subprocess.Popen(
                [sys.executable, "manage.py", *words], cwd=ROOT, env=environ, stdout=log, stderr=log, **options
            )

    def refused(self, name: str, **environ: str) -> str:
        """What a scheduler says that ends by itself at its start."""
        done = subprocess.run(
            [sys.executable, "manage.py", "runscheduler"], cwd=ROOT, env=self.environ(name, **environ),
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        return done.stderr

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        service = self._services.pop(name)
        service.send_signal(number)
        assert service.wait(60) in (0, -number), self.said(name)

    def kill(self, name: str) -> None:
        self.stop(name, signal.SIGKILL)

    def process(self, name: str) -> subprocess.Popen[bytes]:
        return self._services[name]

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-30_000:]

    def _run(self, name: str, *words: str) -> None:
        subprocess.run([sys.executable, "manage.py", *words], cwd=ROOT, env=self.environ(name), check=True)

    # ---- over REST ----

    def ask(self, method: str, path: str, body: Any = None, user: str = "") -> httpx.Response:
        token = self.tokens[user] or self.admin()
        headers = {"Authorization": f"Token {token}"}
        while True:
            answer = http.request(method, f"{self.url}/api/v1/{path}", json=body, headers=headers)
            if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                return answer
            time.sleep(float(answer.headers["retry-after"]))

    def admin(self) -> str:
        """The admin's token, which the first scheduler that ever started has made."""
        (path,) = [path for name in self.cards if (path := self.home(name) / "admin-token").exists()]
        return path.read_text().strip()

    def api(self, method: str, path: str, body: Any = None, user: str = "") -> Any:
        return followed(partial(self.api, user=user), self.ask(method, path, body, user))

    def person(self, name: str, role: str = "user") -> str:
        """Makes somebody who may ask as `user=name`."""
        self.api("POST", "people/", {"username": name, "role": role, "password": "a long password of theirs"})
        sign_in = {"username": name, "password": "a long password of theirs"}
        self.tokens[name] = http.post(f"{self.url}/api/v1/sign-in/", json=sign_in).raise_for_status().json()["key"]
        return name

    def node(self, name: str) -> Any:
        return self.api("GET", f"nodes/{name}/")

    def alive(self) -> set[str]:
        """The names of the nodes that are; nobody while the web side does not answer."""
        with suppress(httpx.TransportError):
            return {node["name"] for node in self.api("GET", "nodes/")["results"] if node["alive"]}
        return set()

    def is_alive(self, name: str) -> bool:
        return name in self.alive()

    def is_linked(self, name: str) -> bool:
        """To the web side, and alive."""
        if not self.is_alive(name):
            return False
        folder = self.home("web") / "nodes"
        with suppress(OSError), socket.socket(socket.AF_UNIX) as calling:
            with short(folder, f"{self._number(name)}.output") as path:
                calling.connect(path)
            return True
        return False

    def _number(self, name: str) -> int:
        with psycopg.connect(self.postgres.url) as database:
            found = database.execute("SELECT id FROM web_node WHERE name = %s", [name]).fetchone()
        assert found
        return int(found[0])

    def hold(self, size: str, quota: str = "", user: str = "", **fields: Any) -> Any:
        """Launches a container that takes `size` and keeps it; its quota is as much as that needs, or `quota`."""
        command = [WORKLOAD, "--bytes", size, "--chunks", "1", "--hold", "3600"]
        body = {"image": "local", "command": command, "gpu_memory": quota or parse_size(size) + CONTEXT, **fields}
        return self.api("POST", "containers/", body, user)

    def container(self, made: Any) -> Any:
        return self.api("GET", f"containers/{made['id']}/")

    def used(self, made: Any) -> int:
        return sum(gpu["used"] for gpu in self.container(made)["gpus"])

    def end_all(self) -> None:
        """Kills what lives on nodes that are there, and waits for its end."""
        for each in self.api("GET", "containers/?live=true")["results"]:
            with suppress(httpx.HTTPStatusError):  # it ended meanwhile
                self.api("POST", f"containers/{each['id']}/kill/", {})
        until(lambda: self.api("GET", "containers/?live=true")["count"] == 0)

    def make_whole(self) -> None:
        """Every node is there again, and nothing lives on any: a test that failed leaves no other one anything."""
        for name in self.cards:
            if name not in self._services or self.process(name).poll() is not None:
                self.start(name)
        until(lambda: all(map(self.is_linked, self.cards)))
        self.end_all()

    def close(self) -> None:
        for name in list(self._services):
            with suppress(AssertionError, subprocess.TimeoutExpired):
                self.stop(name)
        self._listener.close()


@contextmanager
def running_cluster(folder: Path, **cards: str) -> Iterator[Cluster]:
    """All of it up, each node alive."""
    with ExitStack() as stack:
        postgres = stack.enter_context(running_postgres(like=with_tables()))
        cluster = Cluster(folder, postgres, stack.enter_context(running_redis()), cards)
        stack.callback(cluster.close)
        first, *others = cards
        cluster.start(first)
        cluster.start_web()
        until(lambda: (cluster.home(first) / "admin-token").exists())
        until(lambda: cluster.is_alive(first))
        for name in others:
            cluster.start(name)
        cluster.make_whole()
        try:
            yield cluster
        finally:
            cluster.make_whole()
