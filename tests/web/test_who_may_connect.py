"""Who may connect to a container (to its keyboard, one more program, or a port), and for how long."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async

from tests.support.apps import Scheduler as OfPorts
from tests.support.apps import capitals, open_at
from tests.web.test_console import Connection, Scheduler, key_of, refused, shell
from tests.web.test_console_exec import Exec
from web.models import Container, Scope, Token
from web.people import visitor
from web.people.roles import Role

__all__ = ["shell"]

pytestmark = pytest.mark.django_db(transaction=True)

KINDS: dict[str, Callable[..., Connection]] = {
    "console": Connection,
    "exec": Exec,
    "port": partial(Connection, path="ports/8888"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def scheduler(kind: str, tmp_path: Path, settings: Any) -> AsyncIterator[Scheduler | OfPorts]:
    async with open_at(tmp_path, OfPorts(capitals) if kind == "port" else Scheduler(), settings) as made:
        yield made


async def opened(socket: Connection) -> Connection:
    """It passes bytes on."""
    if isinstance(socket, Exec):
        await socket.ask()
    else:
        await socket.connect()
    said = await socket.receive() if "ports" in socket.scope["path"] else None
    assert said in (None, {"port": 8888})
    await socket.send(b"\0x")
    assert await socket.receive() in (b"\1x", b"\0X")
    return socket


MAY_NOT = {"console": "use the console of", "exec": "start anything in", "port": "open port 8888 of"}


@pytest.mark.parametrize(
    ("name", "role", "scope", "status", "words"),
    [
        ("viewer", Role.VIEWER, Scope.WRITE, 403, ""),
        ("stranger", Role.USER, Scope.WRITE, 403, 'You may not {} "shell": it belongs to owner.'),
        ("owner", Role.USER, Scope.READ, 403, "This token is read-only."),
        ("nobody", None, None, 401, "Sign in, or send a token."),
    ],
)
async def test_who_may_not_steer_it_is_refused_before_the_scheduler_hears_of_it(
    shell: Container, scheduler: Scheduler, kind: str,
    name: str, role: Any, scope: Any, status: int, words: str,
) -> None:  # fmt: skip
    key = await sync_to_async(key_of)(name, role, scope) if role else None
    code, said = await refused(KINDS[kind](shell, key))
    assert (code, said["status"]) == (4000 + status, status)
    assert said["error"]["message"] == words.format(MAY_NOT[kind]) or (not words and said["error"]["message"])
    assert scheduler.asked == []


@pytest.mark.parametrize(("name", "role"), [("owner", Role.USER), ("dora", Role.OPERATOR)])
async def test_its_owner_and_an_operator_may(
    shell: Container, scheduler: Scheduler, kind: str, name: str, role: Role
) -> None:
    await (await opened(KINDS[kind](shell, await sync_to_async(key_of)(name, role)))).close()


async def test_another_sites_page_may_not(shell: Container, scheduler: Scheduler, kind: str) -> None:
    socket = KINDS[kind](shell, await sync_to_async(key_of)("owner"), origin="https://elsewhere.example")
    assert await socket.connect() == "close"


def end_token(name: str) -> None:
    Token.objects.all().delete()


def take_role(name: str) -> None:
    Token.objects.get().user.groups.clear()


def switch_off(name: str) -> None:
    Token.objects.get().user._meta.model.objects.filter(username=name).update(is_active=False)


@pytest.mark.parametrize(
    ("end", "code", "status"),
    [(end_token, "bad_token", 4401), (take_role, "forbidden", 4403), (switch_off, "user_inactive", 4401)],
)
async def test_a_right_that_ends_closes_it(
    shell: Container, scheduler: Scheduler, kind: str, monkeypatch: pytest.MonkeyPatch,
    end: Callable[[str], None], code: str, status: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.02)
    socket = await opened(KINDS[kind](shell, await sync_to_async(key_of)("dora", Role.OPERATOR)))
    await sync_to_async(end)("dora")
    assert (await socket.receive())["error"]["code"] == code
    assert await socket.receive() == status
    await socket.close()


async def test_no_container_and_no_scheduler(shell: Container, kind: str, tmp_path: Path, settings: Any) -> None:
    settings.GPUSHARE_HOME = tmp_path
    key = await sync_to_async(key_of)("owner")
    assert (await refused(KINDS[kind](Container(pk=uuid4()), key)))[0] == 4404
    socket = KINDS[kind](shell, key)
    await (socket.ask() if isinstance(socket, Exec) else socket.connect())
    assert (await socket.receive())["error"]["code"] == "scheduler_away"
    assert await socket.receive() == 4503
    await socket.close()
