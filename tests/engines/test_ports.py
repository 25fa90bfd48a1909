"""A connection to a port in a container, over the scheduler's socket, on both engines."""

import asyncio
import gc
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from scheduler.containers import consoles
from scheduler.containers.consoles import Consoles, listeners, ports
from scheduler.engines.base import Engine, Launch
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.process.taken import IMAGE as LOCAL
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import empty, leaks_sockets, started
from tests.support.eventually import PATIENCE, eventually
from tests.support.ports import free_port
from web.console.frames import PORT, WAKING, FrameKind, Line, connect_to_port, connecting, socket_path
from web.errors import Problem

pytestmark = leaks_sockets
SERVE = "/bin/busybox httpd -f -p {address}:{port} -h /"


HERE = {"swap": "", "gave_way": "", "paused": False, "is_out": False}  # where its memory is


class Opened:
    """A container of an engine, and the scheduler's socket beside it."""

    def __init__(self, engine: Engine, home: Path, a_launch: Callable[..., Launch]) -> None:
        self._engine, self.home, self._a_launch = engine, home, a_launch
        self._live: dict[str, Any] = {}
        self.sent: list[Any] = []
        self.broker = SimpleNamespace(live_containers=self._live, now=lambda: self.now, tell=self.sent.append)
        self.now = 0.0
        self.consoles = Consoles(engine, cast(Any, self.broker), home)

    async def launch(self, *command: str) -> UUID:
        launch = self._a_launch(*command)
        status = await self._engine.launch(launch)
        self._live[launch.id] = SimpleNamespace(finished=False, engine_id=status.engine_id, **HERE)
        await self._engine.statuses()
        return UUID(launch.id)

    async def end(self, container: UUID) -> None:
        await self._engine.kill(self._live[str(container)].engine_id)

    async def connect(self, container: UUID, port: int) -> tuple[socket.socket, int]:
        found, answer = await connect_to_port(self.home, container, port)
        return found, PORT.unpack(answer)[0]

    async def refusal(self, container: UUID, port: int) -> Problem:
        with pytest.raises(Problem) as caught:
            await self.connect(container, port)
        return caught.value

    async def when_it_listens(self, container: UUID, port: int) -> tuple[socket.socket, int]:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await self.connect(container, port)
                except Problem as problem:
                    if problem.code != "nothing_listens":
                        raise


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
async def engine(request: pytest.FixtureRequest, tmp_path: Path, empty_shim: Path) -> AsyncIterator[Engine]:
    if request.param == "docker":
        opens = request.getfixturevalue("open_engine")()
    else:
        opens = started(ProcessEngine(tmp_path / "processes", RuntimeEnvironment(empty_shim)))
    async with opens as made:
        yield made
        await empty(made)


@pytest.fixture
async def opened(engine: Engine, tmp_path: Path, a_launch: Callable[..., Launch]) -> AsyncIterator[Opened]:
    made = Opened(engine, tmp_path, partial(a_launch, image=LOCAL) if engine.name == "process" else a_launch)
    await made.consoles.open()
    yield made
    await made.consoles.close()


@pytest.fixture
def of_the_host() -> Iterator[int]:
    """A port that this test listens on, in the host's network namespace."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def answers(connection: socket.socket) -> bool:
    connection.settimeout(PATIENCE)
    with connection:
        await asyncio.to_thread(connection.sendall, b"GET / HTTP/1.0\r\n\r\n")
        return (await asyncio.to_thread(connection.recv, 256)).startswith(b"HTTP/1.")


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "[::1]"])
async def test_what_listens_in_the_container_is_reached(opened: Opened, address: str) -> None:
    port = free_port()
    container = await opened.launch("/bin/sh", "-c", SERVE.format(address=address, port=port))
    connection, found = await opened.when_it_listens(container, port)
    assert found == port
    assert await answers(connection)


async def test_a_port_is_reached_however_many_others_listen_on_the_host(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all some are looked at: a container that opens very many is not to hide those of others."""
    monkeypatch.setattr(listeners, "MOST", 0)
    port = free_port()
    container = await opened.launch("/bin/sh", "-c", SERVE.format(address="127.0.0.1", port=port))
    connection, _ = await opened.when_it_listens(container, port)
    assert await answers(connection)


async def test_who_asks_for_a_connection_takes_no_thread_from_others(opened: Opened) -> None:
    """Each would have to wait for a processor, with all that wants one."""
    port = free_port()
    container = await opened.launch("/bin/sh", "-c", SERVE.format(address="127.0.0.1", port=port))
    (await opened.when_it_listens(container, port))[0].close()
    none = ThreadPoolExecutor(1)
    none.shutdown()
    asyncio.get_running_loop()._default_executor = none  # type: ignore[attr-defined]
    connection, _ = await opened.connect(container, port)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    assert await answers(connection)


async def test_without_a_number_it_is_the_only_one_and_of_several_all_are_named(opened: Opened) -> None:
    one, two = sorted((free_port(), free_port()))
    first, second = (SERVE.format(address="127.0.0.1", port=port) for port in (one, two))
    alone = await opened.launch("/bin/sh", "-c", first)
    connection, found = await opened.when_it_listens(alone, 0)
    assert found == one
    assert await answers(connection)
    await opened.end(alone)
    container = await opened.launch("/bin/sh", "-c", f"{first} & {second} & wait")
    for port in (one, two):
        (await opened.when_it_listens(container, port))[0].close()
    problem = await opened.refusal(container, 0)
    assert problem.message == f"Several ports listen in the container: {one}, {two}. Name one."


async def test_a_port_of_the_host_is_no_port_of_the_container(opened: Opened, of_the_host: int) -> None:
    container = await opened.launch("/bin/sleep", "600")
    problem = await opened.refusal(container, of_the_host)
    assert (problem.status, problem.message) == (409, f"Nothing listens on port {of_the_host} yet.")
    assert (await opened.refusal(container, 0)).message == "Nothing listens in the container yet."


LISTENS_AND_TAKES_NONE = """
import socket, time
server = socket.socket()
server.bind(("127.0.0.1", {port}))
server.listen(0)
time.sleep(600)
"""


async def test_a_listener_that_takes_no_connection_holds_up_no_thread(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads aside are few, and what ends or freezes containers needs one."""
    monkeypatch.setattr(ports, "CONNECTS_WITHIN", PATIENCE)
    if opened.consoles._engine.name != "process":
        pytest.skip("its port can be filled from within only")
    port = free_port()
    container = await opened.launch("python3", "-c", LISTENS_AND_TAKES_NONE.format(port=port))
    (await opened.when_it_listens(container, port))[0].close()
    fillers = [socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(8)]
    for each in fillers:
        each.connect_ex(("127.0.0.1", port))
    with ThreadPoolExecutor(1) as entering, monkeypatch.context() as patched:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        patched.setattr(ports, "_entering", entering)
        held = asyncio.create_task(connect_to_port(opened.home, container, port))
        await eventually(lambda: opened.consoles._tasks)
        with socket_path(opened.home) as path:
            line = Line(*await asyncio.open_unix_connection(path))
        await line.send(*connecting(container, free_port()))
        answer = await line.read()
        assert answer is not None
        assert answer[0] is FrameKind.REFUSED
        assert not held.done()
        await line.close()
        await opened.end(container)
        for each in fillers:
            each.close()
        with pytest.raises(Problem) as caught:
            await held
        assert caught.value.code == "not_reached"


@pytest.mark.parametrize(
    "asked",
    [{"command": "text"}, {"command": []}, {"command": ["a\0"]}, {"command": [1]}, {"command": ["true"], "rows": -1},
     {"command": ["true"], "tty": 1}, {"command": ["true"], "user": "root"}, {"command": ["true"], "columns": 1 << 40}],
)  # fmt: skip
async def test_who_has_taken_the_door_over_starts_no_more_than_it_may(opened: Opened, asked: dict[str, Any]) -> None:
    container = await opened.launch("/bin/sleep", "600")
    with socket_path(opened.home) as path:
        line = Line(*await asyncio.open_unix_connection(path))
    await line.send(FrameKind.EXEC, json.dumps({"container": str(container), **asked}).encode())
    assert await line.read() is None
    await line.close()


async def test_connections_without_end_leave_room_for_all_else(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "AT_ONCE", 10)
    lines = []
    for _ in range(20):
        with socket_path(opened.home) as path:
            lines.append(Line(*await asyncio.open_unix_connection(path)))
    for line in lines[10:]:
        assert await line.read() is None
    assert len(opened.consoles._tasks) == 10
    for line in lines:
        await line.close()


async def test_an_ended_container_and_a_wish_without_sense_are_refused(opened: Opened) -> None:
    assert (await opened.refusal(uuid4(), 80)).code == "container_ended"
    for asked in (b"{}", b"[]", b"no JSON", b"[" * 60_000, b'{"container": {}, "port": 1}'):
        with socket_path(opened.home) as path:
            line = Line(*await asyncio.open_unix_connection(path))
        await line.send(FrameKind.CONNECT, asked)
        assert await line.read() is None
        await line.close()


async def test_who_hangs_up_before_the_answer_is_no_fault(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    container = await opened.launch("/bin/sh", "-c", SERVE.format(address="127.0.0.1", port=port))
    (await opened.when_it_listens(container, port))[0].close()
    with socket_path(opened.home) as path:
        line = Line(*await asyncio.open_unix_connection(path))
    await line.send(*connecting(container, port))
    await line.close()
    await eventually(lambda: not opened.consoles._tasks)
    gc.collect()
    assert not caplog.records


async def test_a_connection_asks_back_the_memory_that_gave_way(opened: Opened) -> None:
    container = await opened.launch("/bin/sleep", "600")
    live = opened.broker.live_containers[str(container)]
    live.swap, live.gave_way, live.is_out = "out", "idle", True
    for opened.now in (1.0, 1.5, 2.1):
        assert (await opened.refusal(container, 80)).code == WAKING
    assert [(each.container, each.now) for each in opened.sent] == [(str(container), 1.0), (str(container), 2.1)]
    live.paused = True  # who was paused by a person comes back by one
    assert (await opened.refusal(container, 80)).code == "nothing_listens"
    live.paused, live.swap, live.is_out = False, "", False
    assert (await opened.refusal(container, 80)).code == "nothing_listens"
    assert len(opened.sent) == 2
