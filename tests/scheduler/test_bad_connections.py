"""Bad manners on a container's socket end that connection, and nobody else notices."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from scheduler.sessions import lease_pages
from scheduler.sessions.connection import UNSENT_LIMIT, Connection
from scheduler.sessions.processes import OPEN_CALLS
from scheduler.sessions.server import CONNECTIONS_BEFORE_HELLO
from shim.binding import FRAME_SIZE, WIRE_VERSION, Frame, Type, pack
from tests.support.host import GIB, MIB, Host
from tests.support.host import host as real_host
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import Process
from tests.support.raw import Elsewhere, Raw, beside

__all__ = ["real_host"]

HELLO = Frame(Type.HELLO, code=WIRE_VERSION)


@pytest.fixture
async def directory(host: InProcess) -> Path:
    """Of the socket of a container that does nothing by itself."""
    container = await host.launch("sleep", "600")
    return host.up.server.socket_dir(str(container.pk))


@pytest.fixture
async def neighbour(host: InProcess) -> AsyncIterator[Process]:
    """A well-behaved process of another container; it must still get memory when the test is over."""
    container = await host.launch("sleep", "60000")
    process = host.process(container)
    await process.connect()
    yield process
    await process.need(64 * MIB)


def size(number: int) -> bytes:
    return struct.pack("=I", number)


BAD = {
    "garbage": random.Random(1).randbytes(4096),
    "text": b"GET / HTTP/1.1\r\nHost: gpushare\r\n\r\n",
    "size of nothing": size(0) + pack(HELLO)[4:],
    "size too large": size(2**32 - 1) + pack(HELLO)[4:],
    "size one too small": size(FRAME_SIZE - 1) + pack(HELLO)[4:],
    "wrong size in half a frame": size(77),
    "message before HELLO": pack(Frame(Type.NEED, 0, 1, 0, MIB)),
    "HELLO twice": pack(HELLO) * 2,
    "a message that only a scheduler sends": pack(HELLO) + pack(Frame(Type.GRANTED, 0, 1, 0, GIB)),
    "unknown type": pack(HELLO) + pack(Frame(99)),
    "slot out of range": pack(HELLO) + pack(Frame(Type.NEED, 1, 1, 0, MIB)),
    "last slot there is": pack(HELLO) + pack(Frame(Type.RELEASED, 65535)),
    "unknown purpose": pack(HELLO) + pack(Frame(Type.NEED, 0, 1, 7, MIB)),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
async def test_connection_that_breaks_the_rules_is_closed(directory: Path, neighbour: Process, data: bytes) -> None:
    raw = await asyncio.to_thread(Raw, directory)
    raw.send_bytes(data)
    assert await asyncio.to_thread(raw.is_closed)
    raw.close()


@pytest.mark.parametrize("cut", [1, 3, 4, 5, FRAME_SIZE - 1])
async def test_half_a_frame_hurts_nobody(host: InProcess, directory: Path, neighbour: Process, cut: int) -> None:
    raw = await asyncio.to_thread(Raw, directory)
    raw.send_bytes(pack(HELLO)[:cut])
    await asyncio.sleep(0)
    raw.close()
    await host.eventually(lambda: not host.up.server.connections(directory.name))


async def test_a_frame_that_arrives_byte_by_byte_is_understood(directory: Path, neighbour: Process) -> None:
    raw = await asyncio.to_thread(Raw, directory)
    for byte in pack(HELLO):
        raw.send_bytes(bytes([byte]))
        await asyncio.sleep(0.001)
    assert (await asyncio.to_thread(raw.read) or HELLO).type == Type.WELCOME
    raw.close()


async def test_shim_of_another_version_is_refused_in_a_sentence(
    real_host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.sessions.processes.WIRE_VERSION", WIRE_VERSION + 1)
    container = await real_host.launch("workload", "--bytes", "1MiB")
    await real_host.until(container, "failed")
    assert "no GPU memory for this process" in real_host.log(container)
    assert "another release started its container; start it again" in real_host.log(container)


FORGER = """
import os, sys
from pathlib import Path
from scheduler.gpus import uuid_bytes
from shim.binding import LeasePage
from tests.support.raw import Elsewhere, Raw
name = f"gpushare-lease-{os.getpid()}-{Path(sys.argv[1]).name}"
page = LeasePage.create([uuid_bytes(sys.argv[2])], name)
page[0].extend(1 << 30)
page[0].reserve(1 << 30)
raw = Raw(Path(sys.argv[1]))
given = raw.hello()
print(os.fstat(given.fileno()).st_ino == os.fstat(page.fileno()).st_ino, given[0].headroom)
"""


async def test_new_process_brings_no_page_of_its_own_making(real_host: Host) -> None:
    """It would have what the page says that it uses without having asked, and past everybody who waits."""
    container = await real_host.launch("sleep", "600")
    live = real_host.up.broker.live_containers[str(container.pk)]
    said, _ = await asyncio.to_thread(beside(FORGER, real_host.up.server.socket_dir(live.id), *live.quota).communicate)
    assert said.split() == ["False", "0"]
    assert not real_host.up.broker.state.containers[live.id].leased


async def test_who_connects_again_has_its_map_read_by_nobody(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be as long as its process likes: eight of 230 MB took both processors of the host, and the interpreter."""
    raws = [await asyncio.to_thread(Raw, directory) for _ in range(3)]
    page = await asyncio.to_thread(raws[0].hello)
    read: list[int] = []
    monkeypatch.setattr(lease_pages, "_map", lambda pid, _: read.append(pid) or [])
    for before, raw in pairwise(raws):
        assert lease_pages.inode(await asyncio.to_thread(raw.hello)) == lease_pages.inode(page)
        assert await asyncio.to_thread(before.is_closed)
    assert read == []
    for raw in raws:
        raw.close()


async def test_of_a_map_no_more_is_read_than_its_budget(
    host: InProcess, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process made it 230 MB long, and a start has to look at all of them."""
    process = await asyncio.to_thread(Elsewhere, directory)  # not this one, which may have pages of earlier tests
    pid, here = process.pid, directory.name
    length = sum(map(len, lease_pages._map(pid, 1 << 30)))
    monkeypatch.setattr(lease_pages, "PIECE", length // 8)
    read = [sum(map(len, lease_pages._map(pid, most))) for most in (1, length // 2, 2 * length)]
    assert read[0] <= length // 8
    assert read[1] <= length * 3 // 4
    assert read[2] > length * 3 // 4
    assert lease_pages.holders([pid], 2 * length) == [(pid, here)]
    monkeypatch.setattr(lease_pages, "PIECE", 256)  # the program itself: a page may lie anywhere after it
    assert lease_pages.holders([pid], 1) == []
    process.close()


async def test_process_that_reads_no_answers_is_hung_up_on_and_few_are_kept_for_it(
    host: InProcess, directory: Path, neighbour: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were 4,096 of each connection: 630 MB of a container."""
    kept: list[int] = []
    send = Connection.send

    def counted(self: Connection, frame: Frame, page: int | None = None) -> None:
        send(self, frame, page)
        kept.append(len(self._unsent))

    monkeypatch.setattr(Connection, "send", counted)
    raw = await asyncio.to_thread(Raw, directory)
    await asyncio.to_thread(raw.hello)
    raw.socket.settimeout(None)

    def flood() -> None:
        needs = b"".join(pack(Frame(Type.NEED, 0, serial, 0, 2**63)) for serial in range(1000))
        while True:
            raw.send_bytes(needs)

    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        await asyncio.to_thread(flood)
    raw.close()
    assert OPEN_CALLS < max(kept) == UNSENT_LIMIT + 1


async def fill(host: InProcess, size: int) -> Process:
    """A process that holds so many bytes, all of its quota, until it is ended."""
    process = host.process(await host.launch("sleep", "60000", gpu_memory=size))
    await process.connect()
    await process.need(size)
    return process


async def test_calls_beyond_a_containers_budget_wait_unread_and_are_answered_in_the_end(
    host: InProcess, directory: Path, neighbour: Process
) -> None:
    """8 × 1,000 waiting calls took 52 s of the loop; now so many of a container are weighed, and the rest waits."""
    needs = OPEN_CALLS
    raw = await asyncio.to_thread(Raw, directory)
    await asyncio.to_thread(raw.hello)
    await neighbour.need(2 * MIB)
    filler = await fill(host, 5110 * MIB)

    def waiting() -> int:
        return sum(request.container == directory.name for request in host.up.broker.state.waiting)

    calls = needs + 40
    await asyncio.to_thread(lambda: [raw.need(12 * MIB, serial) for serial in range(calls)])
    await host.eventually(lambda: waiting() == needs)
    await neighbour.need(2 * MIB)
    assert waiting() == needs
    host.engine.kill_process(filler.pid)
    answers = [await asyncio.to_thread(raw.read) for _ in range(calls)]
    assert {answer and answer.type for answer in answers} == {Type.GRANTED}
    assert {answer and answer.serial for answer in answers} == set(range(calls))
    raw.close()


async def test_what_a_process_frees_comes_back_although_it_is_not_heard(host: InProcess, directory: Path) -> None:
    """Its RELEASED lies behind calls that wait for that very memory."""
    raw = await asyncio.to_thread(Raw, directory)
    page = await asyncio.to_thread(raw.hello)
    raw.need(512 * MIB, serial=0)
    assert await asyncio.to_thread(raw.read) is not None
    page[0].accept(512 * MIB)
    filler = await fill(host, 4600 * MIB)
    calls = OPEN_CALLS + 8
    await asyncio.to_thread(lambda: [raw.need(12 * MIB, serial) for serial in range(1, calls)])
    await host.eventually(lambda: host.up.broker.live_containers[directory.name].open_calls == OPEN_CALLS)
    page[0].release(512 * MIB)
    await asyncio.sleep(2)
    answers = [await asyncio.to_thread(raw.read) for _ in range(1, calls)]
    assert {answer and answer.type for answer in answers} == {Type.GRANTED}
    host.engine.kill_process(filler.pid)
    raw.close()


_GREEDY = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (6000, 6000))
kept = []
for _ in range(int(sys.argv[2])):
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].settimeout(0.5)
    try:
        kept[-1].connect(sys.argv[1])
    except (TimeoutError, BlockingIOError):
        break
print("connected", flush=True)
time.sleep(60)
"""


async def test_many_connections_of_one_container_leave_descriptors_for_the_others(
    host: InProcess, directory: Path, neighbour: Process
) -> None:
    budget = CONNECTIONS_BEFORE_HELLO
    with beside(_GREEDY, directory / "gpushare.sock", 5000) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "connected\n"
        assert host.up.server.connections(directory.name) <= budget
        process.kill()
    await host.eventually(lambda: not host.up.server.connections(directory.name))
