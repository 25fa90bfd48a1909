"""Nothing that a program does holds up the loop that decides: a container that allocates all the while does not notice.

What the bystander's calls take is measured by `python -m benchmarks.bystander`. Here it is counted: each call is
granted, and the attack is still on when the last one is.
"""

import array
import asyncio
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from scheduler.monitors import activity
from scheduler.sessions.server import Server
from scheduler.sessions.wire import WIRE_VERSION, Frame, Type, pack
from tests.scheduler.test_sockets import Welcoming
from tests.support.attacks import ATTACKS, Bystander, attack
from tests.support.eventually import eventually
from tests.support.host import GIB, Host, host
from tests.support.raw import Raw

__all__ = ["host"]


HELLO = Frame(Type.HELLO, code=WIRE_VERSION)
CALLS = 50  # of the bystander's, during an attack


@pytest.fixture
async def directory(host: Host) -> Path:
    """Of the socket of a container that does nothing by itself."""
    return await a_socket(host)


async def a_socket(host: Host, gpu_memory: int = 4 * GIB) -> Path:
    container = await host.launch("sleep", "600", gpu_memory=gpu_memory)
    return host.up.server.socket_dir(str(container.pk))


@asynccontextmanager
async def bystander(host: Host) -> AsyncIterator[None]:
    """It has been answered often within the block, holds all that it was granted, and leaves nothing behind."""
    directory = await a_socket(host)
    process = await asyncio.to_thread(Bystander, directory)
    live = host.up.broker.live_containers[directory.name]
    (gpu,) = live.quota

    def held() -> int:
        return live.used(gpu) // 4096

    before = held()
    try:
        yield
        await eventually(lambda: held() >= before + CALLS)
    finally:
        took = await asyncio.to_thread(process.stop)
    assert len(took) >= before + CALLS
    await eventually(lambda: not live.sessions)
    assert live.granted(gpu) == 0


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "output"])
async def test_a_bystander_is_answered_during(host: Host, directory: Path, name: str) -> None:
    attacking = attack(name, directory)
    process = await asyncio.to_thread(attacking.__enter__)
    try:
        async with bystander(host):
            pass
        assert process.poll() is None, "the attack has ended by itself"
    finally:
        await asyncio.to_thread(attacking.__exit__, None, None, None)
    await eventually(lambda: not host.up.server.connections(directory.name))
    assert len(host.up.broker.state.waiting) == 0


# ---- passed descriptors ---------------------------------------------------------------------------------------------


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "sockets", Welcoming())
    yield server
    server.close()


@pytest.fixture
def older_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be asked to refuse descriptors."""
    monkeypatch.setattr("scheduler.sessions.server._refuses_descriptors", lambda _: False)


def lingering() -> tuple[socket.socket, socket.socket]:
    """A socket whose last close takes a minute, or until the other end is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(1 << 16))
    except BlockingIOError:
        return ours, theirs


def send(raw: Raw, data: bytes, *descriptors: int) -> None:
    raw.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


async def test_the_kernel_passes_no_descriptor_where_it_can_be_asked_not_to(server: Server) -> None:
    raw = await asyncio.to_thread(Raw, server.listen("hostile"))
    if not server.refuses_descriptors:
        pytest.skip("Linux 6.16 and newer")
    with pytest.raises(PermissionError):
        send(raw, pack(HELLO), 0)
    raw.send(HELLO)
    answer = await asyncio.to_thread(raw.read)
    assert answer is not None
    assert answer.type == Type.WELCOME
    raw.close()


@pytest.mark.usefixtures("older_kernel")
@pytest.mark.parametrize("how", ["with HELLO", "after HELLO", "unread"])
async def test_a_descriptor_that_takes_long_to_close_holds_up_nobody_else(server: Server, how: str) -> None:
    """A socket with SO_LINGER froze everybody for 12 s: the kernel closes it in the thread that drops it last."""
    hostile, other = server.listen("hostile"), server.listen("other")
    ours, theirs = lingering()
    raw = await asyncio.to_thread(Raw, hostile)
    if how == "after HELLO":
        raw.send(HELLO)
        await asyncio.to_thread(raw.read)
    if how == "unread":
        raw.send_bytes(b"garbage" * 100)
    send(raw, pack(HELLO), ours.fileno())
    ours.close()
    await eventually(lambda: server.closer.waiting("hostile") > 0)
    for _ in range(20):
        neighbour = await asyncio.to_thread(Raw, other)
        neighbour.send(HELLO)
        answer = await asyncio.to_thread(neighbour.read)
        assert answer is not None
        assert answer.type == Type.WELCOME
        neighbour.close()
    assert server.closer.waiting("hostile") > 0, "it is being closed all the while"
    theirs.close()
    await eventually(lambda: not server.closer.waiting("hostile"))
    raw.close()


@pytest.mark.usefixtures("older_kernel")
async def test_whose_descriptors_are_still_being_closed_connects_later(server: Server, monkeypatch) -> None:
    """So many wait at most, however often it passes more."""
    from scheduler.sessions import server as module

    monkeypatch.setattr(module, "MOST_CLOSING", 4)
    hostile = server.listen("hostile")
    ours, theirs = lingering()
    raws = [await asyncio.to_thread(Raw, hostile)]
    send(raws[0], b"garbage" * 10, ours.fileno(), *[0] * 8)
    ours.close()
    await eventually(lambda: server.closer.waiting("hostile") >= 4)
    late = await asyncio.to_thread(Raw, hostile)
    late.send(HELLO)
    late.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        await asyncio.to_thread(late.read)
    before = len(os.listdir("/proc/self/fd"))
    theirs.close()
    late.socket.settimeout(60)
    answer = await asyncio.to_thread(late.read)
    assert answer is not None
    assert answer.type == Type.WELCOME
    assert len(os.listdir("/proc/self/fd")) < before
    for raw in (*raws, late):
        raw.close()


def test_of_a_program_of_a_thousand_threads_few_are_looked_at() -> None:
    """Whether it stirs: each thread is four files to read, and 3,000 of them took a second of every second."""
    threads = "import threading as t; e = t.Event(); [t.Thread(target=e.wait, daemon=True).start() for _ in range(999)]"
    words = [sys.executable, "-c", f"{threads}; print(flush=True); e.wait()"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert 0 < len(activity._look_at(program.pid, 64).waits) <= 64
        program.kill()
