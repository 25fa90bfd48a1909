"""One more program in a container: how it is asked for, and what is kept of it.

Who may: test_who_may_connect.py.
"""

import asyncio
import json
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer

from appliance.budgets import Budgets
from tests.support.eventually import eventually
from tests.support.machine import make_container
from tests.support.people import make_user
from tests.web.test_console import Connection, Scheduler, key_of, refused, scheduler
from web.console import consumer
from web.console.frames import FrameKind
from web.models import AuditEntry, Container
from web.people import roles
from web.people.roles import Deed, Role
from web.spec import fields

__all__ = ["scheduler"]
pytestmark = pytest.mark.django_db(transaction=True)


class Exec(Connection):
    """The WebSocket of one more program; `asked` is said first."""

    def __init__(self, container: Container, key: str | None, **more: Any) -> None:
        super().__init__(container, key, path="exec", **more)

    async def ask(self, **asked: Any) -> None:
        await self.connect()
        await self.say(json.dumps(asked))

    async def say(self, text: str) -> None:
        await self.send_input({"type": "websocket.receive", "text": text})


@pytest.fixture
def plain() -> Container:
    """Neither a terminal nor a keyboard."""
    return make_container(make_user("owner"), "plain")


async def test_what_is_asked_for_reaches_the_scheduler_and_no_record(plain: Container, scheduler: Scheduler) -> None:
    socket = Exec(plain, await sync_to_async(key_of)("owner"))
    await socket.ask(command=["sh", "-c", "a-secret"], interactive=True, tty=True, rows=33, columns=111)
    await socket.send(b"\0typed")
    assert await socket.receive() == b"\1typed"
    await socket.close()
    kind, said = scheduler.asked[0]
    asked = {"container": str(plain.pk), "command": ["sh", "-c", "a-secret"], "interactive": True, "tty": True,
             "rows": 33, "columns": 111}  # fmt: skip
    assert (kind, json.loads(said)) == (FrameKind.EXEC, asked)
    entries = [entry async for entry in AuditEntry.objects.filter(action__startswith="exec").order_by("id")]
    assert [(entry.action, entry.actor, entry.subject) for entry in entries] == [
        ("exec-opened", "owner", str(plain.pk)),
        ("exec-closed", "owner", str(plain.pk)),
    ]
    assert set(entries[1].detail) == {"name", "seconds"}
    assert "secret" not in str([entry.detail for entry in entries])


async def test_without_a_command_it_is_a_shell(plain: Container, scheduler: Scheduler) -> None:
    socket = Exec(plain, await sync_to_async(key_of)("owner"))
    await socket.ask(tty=True)
    await socket.send(b"\0x")
    await socket.receive()
    await socket.close()
    assert json.loads(scheduler.asked[0][1])["command"][0] == "/bin/sh"


async def test_a_token_in_the_address_is_none(plain: Container, scheduler: Scheduler) -> None:
    key = await sync_to_async(key_of)("owner")
    code, _ = await refused(Exec(plain, None, query=f"token={key}&authorization=Token+{key}".encode()))
    assert code == 4401
    assert scheduler.asked == []


async def test_nothing_is_typed_over_the_channel_layer(
    plain: Container, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node may write there, with Redis: who learned the name of a connection could start a program by it."""
    layer, names = get_channel_layer(), list[str]()
    new_channel = layer.new_channel

    async def noted(*prefix: str) -> str:
        names.append(await new_channel(*prefix))
        return names[-1]

    monkeypatch.setattr(layer, "new_channel", noted)
    socket = Exec(plain, await sync_to_async(key_of)("owner"))
    await socket.connect()
    for name in names:
        await layer.send(name, {"type": "websocket.receive", "text": json.dumps({"command": ["theirs"]})})
    await eventually(lambda: scheduler.asked or not names)
    await socket.say(json.dumps({"command": ["mine"]}))
    await eventually(lambda: scheduler.asked)
    assert json.loads(scheduler.asked[0][1])["command"] == ["mine"]
    await socket.close()


async def test_a_role_can_be_asked_for_and_the_owner_is_then_refused(
    plain: Container, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(roles.NEEDS, Deed.EXEC, Role.OPERATOR)  # type: ignore[arg-type]
    code, said = await refused(Exec(plain, await sync_to_async(key_of)("owner")))
    assert (code, said["error"]["message"]) == (4403, "Only an operator may start programs in containers that run.")
    socket = Exec(plain, await sync_to_async(key_of)("operator", Role.OPERATOR))
    await socket.ask()
    await socket.send(b"\0x")
    assert await socket.receive() == b"\1x"
    await socket.close()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", ""), ("{", ""), ("[]", ""), ('{"tty": "yes"}', "tty"), ('{"command": 3}', "command"),
        ('{"command": [""]}', "command"), ('{"rows": 0}', "rows"), ('{"columns": 100000}', "columns"),
        ('{"user": "root"}', "user"), ('{"privileged": true}', "privileged"), ('{"command": ["a\\u0000b"]}', "command"),
        ('{"command": ["' + "x" * 70000 + '"]}', ""), ("[" * 60000, ""),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_refused(plain: Container, scheduler: Scheduler, text: str, field: str) -> None:
    socket = Exec(plain, await sync_to_async(key_of)("owner"))
    await socket.connect()
    await socket.say(text)
    said = await socket.receive()
    assert said["status"] == 400
    assert said["error"].get("field", "") == field
    assert await socket.receive() == 4400
    await socket.close()
    assert scheduler.asked == []


async def test_a_command_is_split_where_nobody_waits_for_it(
    plain: Container, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One word of 64 KiB took a tenth of a second of the loop that serves everybody, with each connection."""
    split: list[threading.Thread] = []
    words_of = fields.words_of

    def noted(text: str) -> list[str]:
        split.append(threading.current_thread())
        return words_of(text)

    monkeypatch.setattr(fields, "words_of", noted)
    socket = Exec(plain, await sync_to_async(key_of)("owner"))
    await socket.ask(command="x" * 60_000)
    assert (await socket.receive())["error"]["field"] == "command"
    await socket.close()
    assert len(split) == 1
    assert split[0] is not threading.current_thread()


@pytest.mark.parametrize("letter", ["é", "\x01", "🜁"], ids=["beyond ASCII", "control", "two units"])
async def test_a_command_too_long_for_the_way_to_the_scheduler_is_refused_as_that(
    plain: Container, scheduler: Scheduler, letter: str
) -> None:
    """So many letters are allowed, but in JSON each of these takes six bytes, or twelve."""
    socket = Exec(plain, await sync_to_async(key_of)("owner"))
    await socket.connect()
    await socket.say(json.dumps({"command": ["echo", letter * 32000]}, ensure_ascii=False))
    said = await socket.receive()
    assert said["status"] == 400
    assert said["error"]["message"].startswith("This command is too long")
    assert await socket.receive() == 4400
    await socket.close()
    assert scheduler.asked == []


async def test_whoever_says_nothing_is_sent_away(
    plain: Container, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "SAYS_WITHIN", 0.05)
    code, said = await refused(Exec(plain, await sync_to_async(key_of)("owner")))
    assert (code, said["error"]["code"]) == (4408, "too_slow")


@pytest.mark.budget("consoles")
async def test_one_that_has_not_ended_is_counted_though_nobody_looks_any_more(
    plain: Container, scheduler: Scheduler, settings: Any
) -> None:
    """Or whoever opens and closes in a loop has more of them than the budget says."""
    settings.GPUSHARE_BUDGETS = Budgets(consoles=1)
    key = await sync_to_async(key_of)("owner")
    scheduler.has_ended.clear()
    socket = Exec(plain, key)
    await socket.ask()
    await socket.send(b"\0x")
    await socket.receive()
    await socket.send_input({"type": "websocket.disconnect", "code": 1005})
    async with asyncio.timeout(60):
        await scheduler.hung_up.wait()
    code, said = await refused(Exec(plain, key))
    assert (code, said["error"]["code"]) == (4429, "too_many_requests")
    scheduler.has_ended.set()
    await socket.wait(60)
    again = Exec(plain, key)
    await again.ask()
    await again.send(b"\0x")
    assert await again.receive() == b"\1x"
    await again.close()
