"""The production start: web and scheduler as two services over PostgreSQL and Redis, as docs/production.md tells it."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psycopg
import pytest
from websockets.asyncio.client import connect

from tests.support.appliance import until
from tests.support.eventually import PATIENCE
from tests.support.postgres import BIN as POSTGRES
from tests.support.postgres import running_postgres
from tests.support.production import Production
from tests.support.redis_server import BIN as REDIS
from tests.support.redis_server import running_redis
from tests.support.tables import with_tables

pytestmark = [
    pytest.mark.production,
    pytest.mark.skipif(
        POSTGRES is None or REDIS is None, reason="needs the distribution's PostgreSQL and Redis (see .ci/run)"
    ),
]


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    with ExitStack() as stack:
        home = tmp_path_factory.mktemp("production") / "home"
        postgres = stack.enter_context(running_postgres(like=with_tables()))
        running = Production(home, postgres, stack.enter_context(running_redis()), migrated=True)
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
    until(lambda: production.used(first) >= 512 << 20)
    second = production.hold("second", "512MiB")
    until(lambda: production.state(second) == "suspended")

    # Without its scheduler the web side still shows what it knows, says that it is not ready, and loses no command.
    production.stop("scheduler")
    until(lambda: not production.ready())
    assert {row["name"] for row in production.api("GET", "containers/")["results"]} == {"first", "second"}
    production.start_scheduler()
    until(production.ready)
    until(lambda: production.state(second) == "suspended")

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
        open_timeout=PATIENCE,
        origin=f"http://{production.address}",  # type: ignore[arg-type]
    ) as page:
        snapshot = json.loads(await page.recv())
        assert snapshot["type"] == "snapshot"
        await asyncio.to_thread(production.hold, "heard", "64MiB")
        async with asyncio.timeout(60):
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
