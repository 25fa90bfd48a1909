"""A container's socket is there at every moment, and a scheduler that is short of descriptors asks for patience."""

import asyncio
import contextlib
import logging
import os
import resource
import shutil
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from scheduler.sessions import server as server_module
from scheduler.sessions.connection import Connection
from scheduler.sessions.fair_queue import MESSAGE, FairQueue
from scheduler.sessions.server import Server
from scheduler.sessions.wire import WIRE_VERSION, Code, Frame, Type
from tests.support.eventually import eventually
from tests.support.raw import Raw

HELLO = Frame(Type.HELLO, code=WIRE_VERSION)


class Welcoming:
    """A handler that gives everybody what a session takes: some descriptors, and an answer."""

    def __init__(self) -> None:
        self.kept: dict[Connection, list[int]] = {}
        self.ended = 0
        self.fail: Exception | None = None

    def hello(self, connection: Connection, frame: Frame) -> None:
        if self.fail is not None:
            raise self.fail
        self.kept[connection] = [os.dup(connection.peer.pidfd) for _ in range(3)]
        connection.send(Frame(Type.WELCOME, code=Code.OK))

    def message(self, connection: Connection, frame: Frame) -> None: ...

    def closed(self, connection: Connection) -> None:
        self.ended += 1
        for descriptor in self.kept.pop(connection, []):
            os.close(descriptor)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "sockets", Welcoming())
    running = asyncio.create_task(server.run())
    yield server
    running.cancel()
    server.close()


async def test_somebody_listens_under_the_name_at_every_moment(server: Server) -> None:
    path = server.listen("one") / "gpushare.sock"
    failures: list[OSError] = []
    stop = threading.Event()

    def connect() -> None:
        while not stop.is_set():
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
                try:
                    sock.connect(str(path))
                except FileNotFoundError as error:
                    failures.append(error)
                except (ConnectionRefusedError, BlockingIOError):
                    pass  # of the socket that was replaced just then: the shim tries again

    thread = threading.Thread(target=connect)
    thread.start()
    for _ in range(300):
        server.listen("one")
        await asyncio.sleep(0.001)
    stop.set()
    await asyncio.to_thread(thread.join)
    assert failures == []


@pytest.mark.parametrize("remove", [os.unlink, lambda path: shutil.rmtree(path.parent)], ids=["socket", "folder"])
async def test_socket_that_somebody_removed_is_made_again(server: Server, remove, monkeypatch) -> None:
    monkeypatch.setattr(server_module, "LOOK_SECONDS", 0.01)
    directory = server.listen("one")
    remove(directory / "gpushare.sock")
    await eventually((directory / "gpushare.sock").exists)
    raw = await asyncio.to_thread(Raw, directory)
    raw.send(HELLO)
    answer = await asyncio.to_thread(raw.read)
    assert answer is not None
    assert answer.type == Type.WELCOME
    raw.close()


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """The limit: so many more may be open than are now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/proc/self/fd")) + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_out_of_descriptors_programs_wait_and_are_served_later(
    server: Server, few_descriptors: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory = server.listen("one")
    early: list[Raw] = []
    with caplog.at_level(logging.WARNING):
        while not any("cannot accept" in record.message for record in caplog.records):
            early.append(await asyncio.to_thread(Raw, directory))
            early[-1].send(HELLO)
            await asyncio.sleep(0.01)
            assert len(early) < 80
        late = await asyncio.to_thread(Raw, directory)
        late.send(HELLO)
        spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]  # the reserve, for everything else
        for descriptor in spare:
            os.close(descriptor)
        late.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):  # neither refused nor hung up on
            await asyncio.to_thread(late.read)
        for raw in early:
            raw.close()
        late.socket.settimeout(60)
        answer = await asyncio.to_thread(late.read)
        assert answer is not None
        assert answer.type == Type.WELCOME
        late.close()
    assert len(caplog.records) < 8


async def test_errors_are_logged_more_and_more_rarely(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.handler.fail = RuntimeError("wrong")  # type: ignore[attr-defined]
    directory = server.listen("one")
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            raw = await asyncio.to_thread(Raw, directory)
            raw.send(HELLO)
            assert await asyncio.to_thread(raw.read) is None  # no refusal: it may try again
            raw.close()
    assert 1 <= len(caplog.records) <= 8


async def test_who_comes_and_goes_waits_in_the_backlog_beyond_its_connections_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else does; and all that it may have at once may come at once."""
    monkeypatch.setattr(server_module, "CONNECTIONS", 5)
    monkeypatch.setattr(server_module, "CONNECTIONS_A_SECOND", 10)
    now = 0.0
    server = Server(tmp_path / "sockets", Welcoming(), clock=lambda: now)
    directory, other = server.listen("one"), server.listen("other")
    for _ in range(5):
        await come_and_go(directory)
    late = await waits_in_the_backlog(directory)
    await come_and_go(other)
    assert server.connections("one") == 0
    now = 0.1
    assert await asyncio.to_thread(late.read) is not None
    late.close()
    server.close()


async def waits_in_the_backlog(directory: Path) -> Raw:
    """Neither refused nor hung up on."""
    raw = await asyncio.to_thread(Raw, directory)
    raw.send(HELLO)
    raw.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(raw.read)
    raw.socket.settimeout(60)
    return raw


async def let_in(directory: Path) -> Raw:
    raw = await asyncio.to_thread(Raw, directory)
    raw.send(HELLO)
    answer = await asyncio.to_thread(raw.read)
    assert answer is not None
    assert answer.type == Type.WELCOME
    return raw


@pytest.mark.parametrize("limits", [{"CONNECTIONS": 2}, {"CONNECTIONS_IN_ALL": 4}], ids=["its own", "in all"])
async def test_beyond_its_connections_at_once_a_container_waits_and_there_is_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    """Of four in all, who is first has two: as many as are left then."""
    for name, limit in limits.items():
        monkeypatch.setattr(server_module, name, limit)
    server = Server(tmp_path / "sockets", Welcoming())
    one, other = server.listen("one"), server.listen("other")
    raws = [await let_in(one), await let_in(one)]
    late = await waits_in_the_backlog(one)
    raws.append(await let_in(other))
    raws.pop(0).close()
    raws.pop().close()
    assert await asyncio.to_thread(late.read) is not None
    for raw in (*raws, late):
        raw.close()
    server.close()


async def test_who_connects_and_says_nothing_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "HELLO_SECONDS", 3)
    server = Server(tmp_path / "sockets", Welcoming())
    directory = server.listen("one")
    silent, spoken = await asyncio.to_thread(Raw, directory), await let_in(directory)
    assert await asyncio.to_thread(silent.is_closed)
    assert "it did not say HELLO" in caplog.text
    assert server.connections("one") == 1
    for raw in (silent, spoken):
        raw.close()
    server.close()


async def test_who_says_more_than_its_budget_is_heard_later_and_the_others_at_once() -> None:
    now = 0.0
    fair_queue, heard = FairQueue(a_second=5, clock=lambda: now), Counter[str]()

    def hear(container: str, messages: int) -> Callable[[], bool]:
        def one() -> bool:
            heard[container] += 1
            return heard[container] < messages

        return one

    fair_queue.add("loud", hear("loud", 100))
    fair_queue.add("quiet", hear("quiet", 3))
    await eventually(lambda: heard["quiet"] == 3)
    await asyncio.sleep(0)
    assert heard["loud"] == 5
    now = 0.2
    await eventually(lambda: heard["loud"] == 6)


async def test_what_takes_long_to_answer_counts_as_several_messages() -> None:
    now, heard = 0.0, 0
    fair_queue = FairQueue(a_second=1000, clock=lambda: now)

    def slow() -> bool:
        nonlocal now, heard
        now, heard = now + 0.1, heard + 1
        return True

    assert fair_queue.at_once("slow", slow)
    fair_queue.add("slow", slow)
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard < 1000 * MESSAGE / 0.1 + 3
    assert heard * 0.1 / MESSAGE >= 1000


async def come_and_go(directory: Path) -> None:
    (await let_in(directory)).close()


async def test_no_thread_is_started_for_one_that_comes_and_goes(server: Server, monkeypatch) -> None:
    """Each took the loop a millisecond, and then the interpreter: eight containers held up everybody for seconds."""
    directory = server.listen("one")
    if not server.refuses_descriptors:
        pytest.skip("Linux 6.16 and newer")  # elsewhere it may pass descriptors whose closing takes long
    handler, started = server.handler, []
    assert isinstance(handler, Welcoming)
    monkeypatch.setattr("_thread.start_new_thread", lambda *_: started.append(_))
    raws = [Raw(directory) for _ in range(20)]
    for raw in raws:
        raw.send(HELLO)
        raw.close()
    await eventually(lambda: handler.ended == len(raws))
    assert started == []


async def test_a_directory_that_cannot_be_removed_for_want_of_descriptors_goes_later(server: Server) -> None:
    directory = server.listen("one")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # less than are open: no more can be
    try:
        server.shut("one")
        assert directory.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await eventually(lambda: not directory.exists())


async def test_a_directory_that_could_not_be_removed_stays_if_it_is_wanted_again(server: Server, monkeypatch) -> None:
    directory = server.listen("one")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(shutil, "rmtree", lambda *_, **__: None)
        server.shut("one")
    server.listen("one")
    server.shut("another")
    assert (directory / "gpushare.sock").is_socket()
