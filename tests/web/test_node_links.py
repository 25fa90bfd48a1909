"""A node's link to the web side: who may have one, what passes, and what it costs when somebody does not read."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any
from unittest.mock import Mock

import asyncssh
import pytest
from channels.db import database_sync_to_async
from django.utils import timezone

from appliance.doctor import services
from scheduler.containers.consoles.link import Link
from tests.support.eventually import PATIENCE, eventually
from tests.support.machine import make_container, make_node
from web.audit import seals
from web.console.output import _live
from web.errors import Problem
from web.models import Node
from web.people import visitor
from web.relay import links
from web.relay.carrying import CHUNK, WINDOW
from web.relay.reaching import FOLDER, Kind, elsewhere, place_of, reach

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "far"
BUFFERS = 4 << 20  # bytes that sockets of this host and asyncio may hold between two ends


@pytest.fixture
def node(settings) -> Node:
    settings.GPUSHARE_AUDIT_KEY = seals.key_of(NAME).hex()
    return make_node(name=NAME)


class Far:
    """The node's end: what its streams lead to is in `opened`."""

    def __init__(self) -> None:
        self.opened: list[tuple[Kind, socket.socket]] = []
        self.ended: list[Kind] = []
        self.link = Link(self._open)

    def _open(self, kind: Kind) -> tuple[socket.socket, Callable[[], None]]:
        near, far = socket.socketpair()
        near.setblocking(False)
        self.opened.append((kind, near))
        return far, lambda: self.ended.append(kind)


@pytest.fixture
def far(node) -> Iterator[Far]:
    far = Far()
    Node.objects.filter(pk=node.pk).update(link_key=far.link.public)
    node.link_key = far.link.public
    yield far
    for _, near in far.opened:
        near.close()


@asynccontextmanager
async def dialled(
    work: Callable[[socket.socket], Any], name: str = NAME, between: Callable[[bytes], bytes] = bytes
) -> AsyncIterator["asyncio.Task[None]"]:
    """The web side's end, beside what this does at the other end of the WebSocket. Gives the web side's task.
    `between` sees what passes, and may change it."""
    near, far = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=near)
    first = iter([{"type": "websocket.connect"}])

    async def receive() -> dict[str, Any]:
        if message := next(first, None):
            return message
        data = between(await reader.read(CHUNK))
        return {"type": "websocket.receive", "bytes": data} if data else {"type": "websocket.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "websocket.close":
            writer.close()
        elif message["type"] == "websocket.send":
            writer.write(between(message["bytes"]))
            await writer.drain()

    scope = {"url_route": {"kwargs": {"name": name}}}
    web = asyncio.create_task(links.link(scope, receive, send))
    other = asyncio.create_task(work(far))
    try:
        yield web
    finally:
        for task in (other, web):
            task.cancel()
        await asyncio.gather(other, web, return_exceptions=True)
        writer.close()
        far.close()


@database_sync_to_async
def publish(key: str, name: str = NAME) -> None:
    Node.objects.filter(name=name).update(link_key=key)


async def reached(node: Node, kind: Kind) -> socket.socket:
    async def try_() -> socket.socket | None:
        with suppress(Problem):
            return await reach(node, kind)
        return None

    connection = await eventually(try_)
    assert connection
    connection.setblocking(False)
    return connection


async def over(task: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait([task])
    assert task.result() is None


async def test_bytes_pass_both_ways_and_each_side_s_end_is_its_own(node, far):
    loop = asyncio.get_running_loop()
    async with dialled(far.link._serve):
        here = await reached(node, Kind.TERMINAL)
        await loop.sock_sendall(here, b"asked")
        here.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(PATIENCE):
            await eventually(lambda: far.opened)
            (kind, there), *_ = far.opened
            assert kind is Kind.TERMINAL
            assert await loop.sock_recv(there, 100) == b"asked"
            assert await loop.sock_recv(there, 100) == b""
            await loop.sock_sendall(there, b"answered")
            there.shutdown(socket.SHUT_WR)
            assert await loop.sock_recv(here, 100) == b"answered"
            assert await loop.sock_recv(here, 100) == b""
        await eventually(lambda: far.ended)
    here.close()


def test_whoever_dials_finds_no_sockets_of_removed_nodes(node, settings):
    removed = make_node(name="removed", removed_at=timezone.now())
    (settings.GPUSHARE_HOME / FOLDER).mkdir()
    for each in (node, removed):
        with place_of(each, Kind.PORT) as path, socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
    links._known("anybody")
    assert [each.name for each in (settings.GPUSHARE_HOME / FOLDER).iterdir()] == [f"{node.pk}.port"]


def test_a_lone_node_that_dials_the_web_side_is_another_host(far, node, ada):
    container = make_container(ada, node=node)
    assert (elsewhere(container), _live({container.pk})) == (node, set())
    Node.objects.update(link_key="")
    assert (elsewhere(container), _live({container.pk})) == (None, {container.pk})


async def test_the_doctor_of_a_node_says_since_when_it_is_linked_or_why_it_is_not(node, far, settings):
    settings.GPUSHARE_NODE = NAME

    async def says(words: str) -> None:
        await eventually(database_sync_to_async(lambda: words in [each.text() for each in services.scheduler()][-1]))

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        settings.GPUSHARE_WEB = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        await says("since its start. The last reason: it is still dialling.")
        keeping = asyncio.create_task(far.link.keep())
        await says("UTC. The last reason: [Errno 111]")
        keeping.cancel()
    async with dialled(far.link._serve):
        await says(f"linked to the web side at {settings.GPUSHARE_WEB} since 20")


async def test_a_slow_reader_holds_up_its_own_stream_alone_and_little_of_it_is_kept(node, far):
    loop = asyncio.get_running_loop()
    async with dialled(far.link._serve):
        slow, quick = await reached(node, Kind.PORT), await reached(node, Kind.OUTPUT)
        await eventually(lambda: len(far.opened) == 2)
        by_kind = dict(far.opened)
        sent = taken = most = 0

        async def send() -> None:
            nonlocal sent
            while True:
                sent += CHUNK
                await loop.sock_sendall(by_kind[Kind.PORT], bytes(CHUNK))

        sending = asyncio.create_task(send())
        async with asyncio.timeout(PATIENCE):
            while taken < 16 << 20:
                taken += len(await loop.sock_recv(slow, CHUNK))
                await loop.sock_sendall(by_kind[Kind.OUTPUT], b"x")  # meanwhile another one is not held up
                assert await loop.sock_recv(quick, 1) == b"x"
                most = max(most, sent - taken)
        sending.cancel()
        assert most < 2 * WINDOW + BUFFERS
    slow.close()
    quick.close()


async def test_a_link_that_is_called_off_while_it_begins_to_listen_does_not(node, far, monkeypatch):
    monkeypatch.setattr(asyncssh, "run_client", lambda *_, **__: nullcontext(Mock()))
    holding = links._hold(node, far)
    holding.send(None)  # as far as it goes at once
    with pytest.raises(asyncio.CancelledError):
        holding.throw(asyncio.CancelledError)
    with pytest.raises(Problem, match="not linked"):
        await reach(node, Kind.OUTPUT)


@pytest.mark.parametrize("side", ["web", "node"])
async def test_whoever_sits_between_can_end_a_link_and_neither_read_it_nor_speak_in_it(node, far, side):
    loop, passed, changes = asyncio.get_running_loop(), bytearray(), False

    def between(data: bytes) -> bytes:
        passed.extend(data)
        return data[:-1] + bytes([data[-1] ^ 1]) if changes and data else data

    async with dialled(far.link._serve, between=between) as web:
        here = await reached(node, Kind.TERMINAL)
        await eventually(lambda: far.opened)
        ((_, there),) = far.opened
        async with asyncio.timeout(PATIENCE):
            for one, other in ((here, there), (there, here)):
                await loop.sock_sendall(one, b"a secret")
                assert await loop.sock_recv(other, 100) == b"a secret"
            assert len(passed) > 1000
            assert b"secret" not in passed
            changes = True
            one, other = (here, there) if side == "web" else (there, here)
            await loop.sock_sendall(one, b"another")
            assert await loop.sock_recv(other, 100) == b""
        await over(web)
    here.close()


async def test_a_host_with_another_key_has_no_link(node, far):
    thief = Far()
    async with dialled(thief.link._serve) as web:
        await over(web)
    with pytest.raises(Problem, match="not linked"):
        await reach(node, Kind.OUTPUT)


@pytest.mark.parametrize("name", ["nobody", "removed", "silent"])
async def test_a_host_that_is_no_node_or_has_no_key_is_refused_before_anything_else(node, name):
    await database_sync_to_async(make_node)(name="silent")
    await database_sync_to_async(make_node)(name="removed", link_key=Far().link.public, removed_at=node.started_at)
    async with dialled(Far().link._serve, name) as web:
        await over(web)


@pytest.mark.parametrize("key", ["ssh-ed25519 AAAA", "x" * 100, "\0", "ssh-rsa " + "A" * 92])
async def test_a_key_that_is_none_ends_its_own_link(node, key):
    await publish(key)
    async with dialled(Far().link._serve) as web:
        await over(web)


async def test_a_web_side_that_is_another_s_is_not_let_in(far, settings):
    settings.SECRET_KEY = "another's"
    async with dialled(far.link._serve) as web:
        await over(web)
    assert far.opened == []


@pytest.mark.parametrize("change", [{"removed_at": "2026-01-01T00:00Z"}, {"link_key": "of its next scheduler"}])
async def test_whoever_is_expelled_or_replaced_loses_its_link(node, far, monkeypatch, change):
    monkeypatch.setattr(visitor, "LOOK_AGAIN", 0.05)
    async with dialled(far.link._serve) as web:
        here = await reached(node, Kind.OUTPUT)
        await database_sync_to_async(Node.objects.filter(pk=node.pk).update)(**change)
        await over(web)
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.get_running_loop().sock_recv(here, 1) == b""
    with pytest.raises(Problem, match="not linked"):
        await reach(node, Kind.OUTPUT)
    here.close()


@pytest.mark.parametrize("said", [b"", b"\0" * 100, b"SSH-2.0-x\r\n" + b"\xff" * 5000, b"GET / HTTP/1.1\r\n\r\n" * 9])
async def test_nonsense_ends_its_own_link(node, far, said):
    async def talk(connection: socket.socket) -> None:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(connection, said)
        connection.close()

    async with dialled(talk) as web:
        await over(web)


async def test_a_link_opens_what_the_web_side_asks_for_and_nothing_else(node, far, monkeypatch):
    """Not a path, no program, no port."""
    asked = asyncio.get_running_loop().create_future()

    async def _hold(node: Node, connection: socket.socket) -> None:
        async with asyncssh.run_client(connection, **links.options(node)) as ssh:
            for ask in (
                ssh.open_unix_connection("/etc/passwd"), ssh.open_connection("127.0.0.1", 22), ssh.create_process("id"),
                ssh.start_sftp_client(), ssh.create_server(asyncssh.SSHTCPSession, "127.0.0.1", 0),
            ):  # fmt: skip
                with pytest.raises((asyncssh.Error, asyncssh.ChannelListenError)):
                    await ask
            asked.set_result(None)

    monkeypatch.setattr(links, "_hold", _hold)
    async with dialled(far.link._serve) as web:
        await over(web)
    assert asked.done()
    assert far.opened == []
