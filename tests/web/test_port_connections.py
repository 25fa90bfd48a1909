"""Who may connect to a port in a container, and what is kept of it. The scheduler's end is the test's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.db import connections

from appliance.asgi import application
from tests.support.apps import Scheduler, capitals
from tests.support.eventually import PATIENCE, eventually
from tests.support.machine import make_container
from tests.support.people import make_user
from web.budgets import Places
from web.console import ports
from web.models import AuditEntry, Container
from web.people import tokens, visitor
from web.people.roles import Role

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def scheduler(tmp_path: Path, settings: Any) -> AsyncIterator[Scheduler]:
    settings.GPUSHARE_HOME = tmp_path
    made = Scheduler(capitals)
    await made.open(tmp_path)
    yield made
    await made.close()
    await sync_to_async(connections.close_all)()


@pytest.fixture
def lab() -> Container:
    return make_container(make_user("owner"), "lab")


class Connection(ApplicationCommunicator):
    def __init__(self, container: object, key: str, port: int = 8888, origin: str = "http://localhost") -> None:
        headers = [(b"host", b"localhost"), (b"origin", origin.encode()), (b"authorization", f"Token {key}".encode())]
        path = f"/ws/containers/{container}/ports/{port}/"
        super().__init__(application, {"type": "websocket", "path": path, "headers": headers, "query_string": b""})

    async def connect(self) -> str:
        await self.send_input({"type": "websocket.connect"})
        return str((await self.receive_output(PATIENCE))["type"])

    async def send(self, data: bytes) -> None:
        await self.send_input({"type": "websocket.receive", "bytes": data})

    async def receive(self) -> Any:
        """Bytes, what a text says, or the close code."""
        said = await self.receive_output(PATIENCE)
        if said["type"] == "websocket.close":
            return said.get("code", 1000)
        return said["bytes"] if said.get("bytes") else json.loads(said["text"])

    async def close(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1005})
        await self.wait(PATIENCE)


@sync_to_async
def key_of(name: str, role: Role = Role.USER) -> str:
    return tokens.make(Container.objects.get().owner if name == "owner" else make_user(name, role))[1]


async def opened(lab: Container, key: str, port: int = 8888) -> Connection:
    connection = Connection(lab.pk, key, port)
    assert await connection.connect() == "websocket.accept"
    assert await connection.receive() == {"port": 8888}
    return connection


async def test_bytes_pass_both_ways_until_either_side_ends(lab: Container, scheduler: Scheduler) -> None:
    key = await key_of("owner")
    first, second = await opened(lab, key), await opened(lab, key, 0)
    for connection in (first, second):
        await connection.send(b"x" * 100_000)
        got = b""
        while len(got) < 100_000:
            got += await connection.receive()
        assert got == b"X" * 100_000
    await first.close()
    await scheduler.hang_up()
    assert await second.receive() == 1000
    await second.close()
    assert scheduler.asked == [{"container": str(lab.pk), "port": port} for port in (8888, 0)]
    entries = AuditEntry.objects.filter(action__startswith="port-")
    assert await entries.acount() == 1  # one browser opens hundreds


@pytest.mark.parametrize(
    ("who", "role", "code"), [("owner", Role.USER, 0), ("dora", Role.OPERATOR, 0), ("mallory", Role.USER, 4403)]
)
async def test_who_may_not_steer_it_may_not_connect(
    lab: Container, scheduler: Scheduler, who: str, role: Role, code: int
) -> None:
    connection = Connection(lab.pk, await key_of(who, role))
    await connection.connect()
    said = await connection.receive()
    assert said == {"port": 8888} if not code else "error" in said
    assert not code or await connection.receive() == code
    assert bool(scheduler.asked) is not bool(code)
    await connection.close()


async def test_another_site_s_page_may_not(lab: Container, scheduler: Scheduler) -> None:
    connection = Connection(lab.pk, await key_of("owner"), origin="https://elsewhere.example")
    assert await connection.connect() == "websocket.close"


async def test_a_right_that_ends_closes_it(
    lab: Container, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.01)
    connection = await opened(lab, await key_of("dora", Role.OPERATOR))
    await sync_to_async(lambda: lab.owner._meta.model.objects.filter(username="dora").update(is_active=False))()
    assert "error" in await connection.receive()
    assert await connection.receive() in (4401, 4403)
    await connection.close()


@pytest.mark.parametrize(("port", "code"), [(80, 4409), (65536, 4400)])
async def test_a_port_where_nothing_listens_and_none(
    lab: Container, scheduler: Scheduler, port: int, code: int
) -> None:
    connection = Connection(lab.pk, await key_of("owner"), port)
    await connection.connect()
    assert "error" in await connection.receive()
    assert await connection.receive() == code
    await connection.close()
    assert not await AuditEntry.objects.filter(action__startswith="port-").aexists()


async def test_no_container_and_no_scheduler(lab: Container, tmp_path: Path, settings: Any) -> None:
    settings.GPUSHARE_HOME = tmp_path
    for container, code in ((uuid4(), 4404), (lab.pk, 4503)):
        connection = Connection(container, await key_of("owner"))
        await connection.connect()
        assert "error" in await connection.receive()
        assert await connection.receive() == code
        await connection.close()
    await sync_to_async(connections.close_all)()


@pytest.fixture
def asleep(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """Its container's memory is away; it is asked about all the time."""
    monkeypatch.setattr(ports, "LOOK_AGAIN", 0.01)
    scheduler.awake = False
    return scheduler


async def test_it_is_held_until_the_memory_is_back(lab: Container, asleep: Scheduler) -> None:
    connection = Connection(lab.pk, await key_of("owner"))
    await connection.connect()
    await eventually(lambda: len(asleep.asked) > 2)
    assert await connection.receive_nothing()
    asleep.awake = True
    assert await connection.receive() == {"port": 8888}
    await connection.close()
    assert not ports.waiting.held(lab.pk)


async def test_so_many_are_held_and_one_that_hangs_up_gives_its_place_back(
    lab: Container, asleep: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "waiting", Places(1))  # 64
    key = await key_of("owner")
    first, second, third = (Connection(lab.pk, key) for _ in range(3))
    await first.connect()
    await eventually(lambda: ports.waiting.held(lab.pk))
    await second.connect()
    assert (await second.receive())["status"] == 503
    assert await second.receive() == 4503
    await first.close()
    await third.connect()
    await eventually(lambda: ports.waiting.held(lab.pk))
    for each in (second, third):
        await each.close()


async def test_a_right_that_ends_while_it_is_held_closes_it(
    lab: Container, asleep: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.05)
    connection = Connection(lab.pk, await key_of("dora", Role.OPERATOR))
    await connection.connect()
    await eventually(lambda: asleep.asked)
    await sync_to_async(lambda: lab.owner._meta.model.objects.filter(username="dora").update(is_active=False))()
    assert "error" in await connection.receive()
    await connection.close()
