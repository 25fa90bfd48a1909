"""A connection to a port in a container, and what is kept of it. The scheduler's end is the test's.

Who may: test_who_may_connect.py.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from tests.support.apps import Scheduler, capitals, open_at
from tests.support.eventually import eventually
from tests.support.machine import make_container
from tests.support.people import make_user
from tests.web.test_console import Connection, key_of
from web.budgets import Places
from web.console import ports
from web.models import AuditEntry, Container
from web.people import visitor
from web.people.roles import Role

pytestmark = pytest.mark.django_db(transaction=True)
PORT = "ports/8888"


@pytest.fixture
async def scheduler(tmp_path: Path, settings: Any) -> AsyncIterator[Scheduler]:
    async with open_at(tmp_path, Scheduler(capitals), settings) as made:
        yield made


@pytest.fixture
def lab() -> Container:
    return make_container(make_user("owner"), "lab")


async def opened(lab: Container, key: str, port: int = 8888) -> Connection:
    connection = Connection(lab, key, path=f"ports/{port}")
    assert await connection.connect() == "accept"
    assert await connection.receive() == {"port": 8888}
    return connection


async def test_bytes_pass_both_ways_until_either_side_ends(lab: Container, scheduler: Scheduler) -> None:
    key = await sync_to_async(key_of)("owner")
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


@pytest.mark.parametrize(("port", "code"), [(80, 4409), (65536, 4400)])
async def test_a_port_where_nothing_listens_and_none(
    lab: Container, scheduler: Scheduler, port: int, code: int
) -> None:
    connection = Connection(lab, await sync_to_async(key_of)("owner"), path=f"ports/{port}")
    await connection.connect()
    assert "error" in await connection.receive()
    assert await connection.receive() == code
    await connection.close()
    assert not await AuditEntry.objects.filter(action__startswith="port-").aexists()


@pytest.fixture
def asleep(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """Its container's memory is away; it is asked about all the time."""
    monkeypatch.setattr(ports, "LOOK_AGAIN", 0.01)
    scheduler.awake = False
    return scheduler


async def test_it_is_held_until_the_memory_is_back(lab: Container, asleep: Scheduler) -> None:
    connection = Connection(lab, await sync_to_async(key_of)("owner"), path=PORT)
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
    key = await sync_to_async(key_of)("owner")
    first, second, third = (Connection(lab, key, path=PORT) for _ in range(3))
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
    connection = Connection(lab, await sync_to_async(key_of)("dora", Role.OPERATOR), path=PORT)
    await connection.connect()
    await eventually(lambda: asleep.asked)
    await sync_to_async(lambda: lab.owner._meta.model.objects.filter(username="dora").update(is_active=False))()
    assert "error" in await connection.receive()
    await connection.close()
