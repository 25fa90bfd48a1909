"""The production start: web and scheduler as two services over PostgreSQL and Redis, as docs/production.md tells it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from websockets.asyncio.client import connect

from tests.support.appliance import ROOT, WORKLOAD, http, until
from tests.support.postgres import BIN as POSTGRES
from tests.support.postgres import Postgres, running_postgres
from tests.support.redis_server import BIN as REDIS
from tests.support.redis_server import Redis, running_redis

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(
        POSTGRES is None or REDIS is None, reason="needs the distribution's PostgreSQL and Redis (see .ci/run)"
    ),
]


class Production:
    """Both services, each of which may be stopped and started without the other."""

    def __init__(self, home: Path, postgres: Postgres, redis: Redis) -> None:
        self.home, self.postgres, self.redis = home, postgres, redis
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "DJANGO_"))}
        self._environ = kept | {
            "GPUSHARE_HOME": str(home),
            "GPUSHARE_GPUS": "sim:1x1GiB",
            "GPUSHARE_ENGINE": "process",
            "GPUSHARE_POLICY": "fifo",
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
        }
        self._log = (home.parent / "services.log").open("ab")
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=self._environ, check=True)

    def start_scheduler(self) -> None:
        self._start("scheduler", "manage.py", "runscheduler")

    def start_web(self) -> None:
        number = self._listener.fileno()
        self._start("web", "manage.py", "runweb", "--fd", str(number))

    def _start(self, name: str, *words: str) -> None:
        self._services[name] = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT, env=self._environ, stdout=self._log, stderr=self._log, pass_fds=[self._listener.fileno()],
        )  # fmt: skip

    def stop(self, name: str) -> None:
        service = self._services.pop(name)
        service.send_signal(signal.SIGTERM)
        assert service.wait(30) in (0, -signal.SIGTERM), self.said()

    def said(self) -> str:
        return Path(self._log.name).read_text()[-3000:]

    def ready(self) -> bool:
        try:
            return http.get(f"http://{self.address}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def api(self, method: str, path: str, body: Any = None) -> Any:
        token = (self.home / "admin-token").read_text().strip()
        headers = {"Authorization": f"Token {token}"}
        answer = http.request(
            method, f"http://{self.address}/api/v1/{path}", json=body, headers=headers
        ).raise_for_status()
        return answer.json() if answer.content else None

    def hold(self, name: str, size: str) -> str:
        """Launches a container that takes `size` and keeps it."""
        body = {
            "name": name,
            "image": "local",
            "command": [WORKLOAD, "--bytes", size, "--hold", "3600"],
            "gpu_memory": "700MiB",
        }
        return str(self.api("POST", "containers/", body)["id"])

    def state(self, container: str) -> str:
        return str(self.api("GET", f"containers/{container}/")["state"])

    def sign_in(self) -> str:
        """The Cookie header of a browser that has signed in."""
        with httpx.Client(base_url=f"http://{self.address}") as browser:
            page = browser.get("/login/").raise_for_status().text
            (hidden,) = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
            password = (self.home / "admin-token").read_text().strip()
            form = {"csrfmiddlewaretoken": hidden, "username": "admin", "password": password}
            answer = browser.post("/login/", data=form, headers={"Referer": str(browser.base_url)})
            assert answer.status_code == 302, answer.text
            return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())

    def close(self) -> None:
        for name in list(self._services):
            self.stop(name)
        self._listener.close()
        self._log.close()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    with ExitStack() as stack:
        home = tmp_path_factory.mktemp("production") / "home"
        running = Production(home, stack.enter_context(running_postgres()), stack.enter_context(running_redis()))
        stack.callback(running.close)
        running.start_scheduler()
        running.start_web()
        until(running.ready)
        yield running


@pytest.fixture
def production(services: Production) -> Iterator[Production]:
    """The same for all tests; each leaves it whole and without living containers."""
    yield services
    for container in services.api("GET", "containers/?live=true")["results"]:
        services.api("POST", f"containers/{container['id']}/kill/", {})


def test_two_services_share_a_card_and_either_may_be_restarted(production: Production) -> None:
    first = production.hold("first", "512MiB")
    until(lambda: production.state(first) == "running")
    second = production.hold("second", "512MiB")
    until(lambda: production.state(second) == "suspended")

    # Without its scheduler the web side still shows what it knows, says that it is not ready, and loses no command.
    production.stop("scheduler")
    until(lambda: not production.ready())
    assert {row["name"] for row in production.api("GET", "containers/")["results"]} == {"first", "second"}
    production.start_scheduler()
    until(production.ready)
    assert production.state(second) == "suspended"

    production.stop("web")
    production.start_web()
    until(production.ready)
    assert production.api("POST", f"containers/{first}/kill/", {})["state"] == "killed"
    until(lambda: production.state(second) == "running")


async def test_the_page_of_one_service_hears_of_what_the_other_does(production: Production) -> None:
    """A change in the scheduler reaches a browser at the web service, by way of Redis."""
    cookie = await asyncio.to_thread(production.sign_in)
    async with connect(
        f"ws://{production.address}/ws/dashboard/",
        additional_headers={"Cookie": cookie},
        origin=f"http://{production.address}",  # type: ignore[arg-type]
    ) as page:
        snapshot = json.loads(await page.recv())
        assert snapshot["type"] == "snapshot"
        await asyncio.to_thread(production.hold, "heard", "64MiB")
        async with asyncio.timeout(30):
            while "heard" not in (text := str(await page.recv())):
                pass
        assert json.loads(text)["seq"] > snapshot["seq"]


def refused(production: Production, path: str, body: object) -> tuple[int, str]:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        production.api("POST", path, body)
    answer = caught.value.response
    return answer.status_code, answer.json()["error"]["code"]


def test_without_redis_everything_goes_on_and_wrong_passwords_are_still_counted(production: Production) -> None:
    production.redis.stop()
    alone = production.hold("alone", "64MiB")
    until(lambda: production.state(alone) == "running")
    wrong = {"username": "admin", "password": "wrong"}
    assert {refused(production, "sign-in/", wrong) for _ in range(10)} == {(401, "bad_credentials")}
    assert refused(production, "sign-in/", wrong) == (429, "too_many_requests")
    production.redis.start()
    assert production.api("POST", f"containers/{alone}/kill/", {})["state"] == "killed"


def test_requests_hand_their_connection_to_the_database_on(production: Production) -> None:
    def connections() -> set[int]:
        asked = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        with psycopg.connect(production.postgres.url) as database:
            return {pid for (pid,) in database.execute(asked)}

    production.api("GET", "gpus/")
    before = connections()
    assert len(before) >= 2  # the scheduler's, and the web service's
    for _ in range(10):
        production.api("GET", "gpus/")
    # A request can come while the one before is being put away; then there are two threads, and these take turns.
    assert len(connections() - before) <= 2


def test_a_database_that_was_away_is_503_and_then_is_not(production: Production) -> None:
    first = production.hold("first", "64MiB")
    production.postgres.stop()
    try:
        assert refused(production, f"containers/{first}/pause/", {}) == (503, "database_away")
    finally:
        production.postgres.start()
    until(production.ready)
    assert production.api("POST", f"containers/{first}/pause/", {})["state"] == "paused"
    assert production.api("POST", f"containers/{first}/kill/", {})["state"] == "killed"
