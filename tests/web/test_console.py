"""The keyboard of a container, and what is kept of it. The scheduler's end of the line is the test's.

Who may use it: test_who_may_connect.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.test import Client

from appliance.asgi import application
from appliance.budgets import Budgets
from tests.support.apps import open_at
from tests.support.eventually import PATIENCE
from tests.support.leaving import WAYS, cookie_of
from tests.support.machine import make_container
from tests.support.people import make_user
from web.console.frames import PAYLOAD_LIMIT, FrameKind, Line, refusal, socket_path
from web.errors import Problem
from web.models import AuditEntry, Container, Scope
from web.people import tokens, visitor
from web.people.roles import Role

pytestmark = pytest.mark.django_db(transaction=True)


class Scheduler:
    """Lets everybody in, echoes input as output, and ends with the input."""

    lines: list[Line]
    refuses: Problem | None = None

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()  # what it had started, once somebody has hung up
        self.has_ended.set()
        self.hung_up = asyncio.Event()  # somebody has

    async def open(self, home: Path) -> None:
        self.lines, self.asked = [], []
        (home / "consoles").mkdir()
        with socket_path(home) as path:
            self._server = await asyncio.start_unix_server(self._serve, path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        self.lines.append(line)
        self.asked.append(await line.read())
        if self.refuses:
            await line.send(FrameKind.REFUSED, refusal(self.refuses).encode())
        else:
            await line.send(FrameKind.OPEN)
        while frame := await line.read():
            kind, data = frame
            await line.send(
                {FrameKind.INPUT: FrameKind.OUTPUT, FrameKind.RESIZE: FrameKind.ERRORS}.get(kind, kind), data
            )
        self.hung_up.set()
        await self.has_ended.wait()
        await line.close()

    async def close(self) -> None:
        self._server.close()
        for line in self.lines:
            await line.close()


@pytest.fixture
async def scheduler(tmp_path: Path, settings: Any) -> AsyncIterator[Scheduler]:
    async with open_at(tmp_path, Scheduler(), settings) as made:
        yield made


@pytest.fixture
def shell() -> Container:
    return make_container(make_user("owner"), "shell", interactive=True, tty=True)


def key_of(name: str, role: Role = Role.USER, scope: str = Scope.WRITE) -> str:
    user = Container.objects.get().owner if name == "owner" else make_user(name, role)
    return tokens.make(user, scope=scope)[1]


class Connection(ApplicationCommunicator):
    """A WebSocket as a server would hand it to the application."""

    def __init__(
        self,
        container: Container,
        key: str | None,
        origin: str = "http://localhost",
        cookie: tuple[bytes, bytes] | None = None,
        path: str = "console",
        query: bytes = b"",
    ) -> None:
        headers = [
            (b"host", b"localhost"),
            (b"origin", origin.encode()),
            *([(b"authorization", f"Token {key}".encode())] if key else []),
        ]
        headers += [cookie] if cookie else []
        where = {"path": f"/ws/containers/{container.pk}/{path}/", "query_string": query}
        super().__init__(application, {"type": "websocket", "headers": headers, **where})

    async def connect(self) -> str:
        """accept or close"""
        await self.send_input({"type": "websocket.connect"})
        return str((await self.receive_output(PATIENCE))["type"]).removeprefix("websocket.")

    async def send(self, message: bytes) -> None:
        await self.send_input({"type": "websocket.receive", "bytes": message})

    async def receive(self) -> Any:
        """Bytes, an error's text as what it says, or the close code; not that it is open."""
        said = await self.receive_output(PATIENCE)
        if said.get("bytes") == bytes([FrameKind.OPEN]):
            return await self.receive()
        if said["type"] == "websocket.close":
            return said.get("code", 1000)
        return said["bytes"] if said.get("bytes") else json.loads(said["text"])

    async def close(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1005})
        await self.wait(PATIENCE)  # else it is cut off in the middle of what it does at the end


async def refused(socket: Connection) -> tuple[int, dict[str, Any]]:
    """The close code, and what was said before."""
    assert await socket.connect() == "accept"
    said, code = await socket.receive(), await socket.receive()
    await socket.close()
    return code, said


async def test_it_is_open_once_the_containers_end_has_answered(shell: Container, scheduler: Scheduler) -> None:
    socket = Connection(shell, await sync_to_async(key_of)("owner"))
    await socket.connect()
    assert (await socket.receive_output(PATIENCE))["bytes"] == bytes([FrameKind.OPEN])
    await socket.close()
    scheduler.refuses = Problem("container_ended", "The container has ended.", 409)
    other = Connection(shell, await sync_to_async(key_of)("owner"))
    await other.connect()
    assert "The container has ended." in (await other.receive_output(PATIENCE))["text"]
    await other.close()


async def test_frames_are_passed_on_and_opening_and_closing_is_audited(shell: Container, scheduler: Scheduler) -> None:
    socket = Connection(shell, await sync_to_async(key_of)("owner"))
    await socket.connect()
    await socket.send(b"\0secret")
    assert await socket.receive() == b"\1secret"
    await socket.send(b"\3\0\x21\0\x6f")
    assert await socket.receive() == b"\2\0\x21\0\x6f"
    await socket.send(b"\4")
    assert await socket.receive() == b"\4"
    assert await socket.receive() == 1000
    await socket.close()
    assert scheduler.asked == [(FrameKind.OPEN, str(shell.pk).encode())]
    entries = [entry async for entry in AuditEntry.objects.filter(action__startswith="console").order_by("id")]
    assert [(entry.action, entry.actor, entry.subject) for entry in entries] == [
        ("console-opened", "owner", str(shell.pk)),
        ("console-closed", "owner", str(shell.pk)),
    ]
    assert "secret" not in str([entry.detail for entry in entries])


@pytest.mark.budget("consoles", "consoles_in_all")
async def test_so_many_consoles_are_open_at_once_and_a_place_comes_free(
    shell: Container, scheduler: Scheduler, settings: Any
) -> None:
    settings.GPUSHARE_BUDGETS = Budgets(consoles=2, consoles_in_all=3)
    owners, others = [await sync_to_async(key_of)(*who) for who in (("owner",), ("operator", Role.OPERATOR))]
    open_ = [await connected(shell, key) for key in (owners, owners)]
    code, said = await refused(Connection(shell, owners))
    assert (code, said["error"]["code"]) == (4429, "too_many_requests")
    assert said["error"]["message"] == "Too many consoles are open by you (2 at once). End one, or try again later."
    open_.append(await connected(shell, others))
    code, said = await refused(Connection(shell, others))
    assert said["error"]["message"] == "Too many consoles are open here (3 at once). End one, or try again later."
    await open_.pop().close()
    open_.append(await connected(shell, others))
    for socket in open_:
        await socket.close()


async def connected(container: Container, key: str) -> Connection:
    socket = Connection(container, key)
    await socket.connect()
    await socket.send(b"\0x")
    assert await socket.receive() == b"\1x"
    return socket


async def test_a_container_without_a_keyboard_and_one_that_is_none(shell: Container, scheduler: Scheduler) -> None:
    key = await sync_to_async(key_of)("owner")
    deaf = await sync_to_async(make_container)(shell.owner, "deaf")
    assert (await refused(Connection(deaf, key)))[1]["error"]["code"] == "no_console"
    assert (await refused(Connection(Container(), key)))[0] == 4404


async def test_what_the_scheduler_refuses_is_reported(shell: Container, scheduler: Scheduler) -> None:
    scheduler.refuses = Problem("container_ended", "The container has ended.", 409)
    code, said = await refused(Connection(shell, await sync_to_async(key_of)("owner")))
    assert (code, said) == (
        4409,
        {"status": 409, "error": {"code": "container_ended", "message": "The container has ended."}},
    )
    assert not await AuditEntry.objects.filter(action__startswith="console").aexists()


async def test_a_scheduler_that_goes_away_is_reported(shell: Container, scheduler: Scheduler) -> None:
    socket = Connection(shell, await sync_to_async(key_of)("owner"))
    await socket.connect()
    await socket.send(b"\0x")
    await socket.receive()
    await scheduler.close()
    assert (await socket.receive())["error"]["code"] == "scheduler_away"
    assert await socket.receive() == 4503
    await socket.close()


@pytest.mark.parametrize("leave", [way for way in WAYS if way.__name__ != "delete"])
async def test_whoever_is_no_longer_signed_in_cannot_type_on(
    shell: Container, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, leave: Any
) -> None:
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.02)
    browser = Client()
    await sync_to_async(browser.force_login)(shell.owner)
    socket = Connection(shell, None, cookie=cookie_of(browser))
    await socket.connect()
    await socket.send(b"\0x")
    assert await socket.receive() == b"\1x"
    await sync_to_async(leave)(shell.owner, browser)
    assert (await socket.receive())["error"]["message"] == "Sign in, or send a token."
    assert await socket.receive() == 4401
    await socket.close()


@pytest.mark.parametrize(
    "message",
    [b"", b"\1output", b"\5", b"\3\0", b"\6" + b"0" * 36, b"\7{}", b"\xff", b"\0" + bytes(PAYLOAD_LIMIT + 1)],
    ids=lambda message: message[:8].hex() or "nothing",
)
async def test_what_is_no_frame_ends_it(shell: Container, scheduler: Scheduler, message: bytes) -> None:
    socket = Connection(shell, await sync_to_async(key_of)("owner"))
    await socket.connect()
    await socket.send(message)
    assert (await socket.receive())["error"]["code"] == "bad_frame"
    assert await socket.receive() == 4400
    await socket.close()
