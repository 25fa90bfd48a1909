"""Who looks at a console keeps nobody else from looking: not by standing still, nor by a slow Docker."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from scheduler.containers import consoles as module
from scheduler.containers.consoles import Console, Consoles
from scheduler.containers.consoles.viewer import Viewer
from scheduler.engines.base import Output
from tests.support.eventually import PATIENCE
from web.console.frames import FrameKind, Line, dial

PAUSES_AT = 64 << 10  # bytes that asyncio keeps before whoever sends has to wait
FAST, SLOW = UUID(int=1), UUID(int=2)


class Screen:
    """Writes as long as somebody reads; nobody types."""

    async def read(self) -> tuple[Output, bytes]:
        await asyncio.sleep(0)
        return Output.OUT, b"x" * 4096

    async def write(self, data: bytes) -> None: ...

    async def close(self) -> None: ...


async def a_line() -> tuple[Line, Line]:
    """Its two ends. The kernel keeps as little as it can of what is not read."""
    pair = socket.socketpair()
    for each in pair:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    one, other = [await asyncio.open_connection(sock=each) for each in pair]
    return Line(*one), Line(*other)


async def test_one_that_reads_nothing_is_cut_off_when_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 0.0)
    console = Console(cast(Any, Screen()))
    (ours, still), (ours_too, reads) = await a_line(), await a_line()
    still._reader._transport.pause_reading()  # type: ignore[attr-defined]
    tasks = [asyncio.create_task(console.look(Viewer(ours))), asyncio.create_task(console.run())]
    async with asyncio.timeout(PATIENCE):
        while ours._writer.transport.get_write_buffer_size() < PAUSES_AT:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    tasks.append(asyncio.create_task(console.look(Viewer(ours_too))))
    try:
        async with asyncio.timeout(PATIENCE):
            frame = await reads.read()
            assert frame is not None
            assert frame[0] is FrameKind.OUTPUT
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for line in (ours, still, ours_too, reads):
            await line.close()


@pytest.fixture
async def consoles(tmp_path: Path) -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Of two containers of an engine that is slow to attach to one of them: once the first is set, until the second."""
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def attach(engine_id: str) -> Any:
        if engine_id == str(SLOW):
            begun.set()
            await goes_on.wait()
        return Screen()

    live_containers = {str(each): SimpleNamespace(finished=False, engine_id=str(each)) for each in (FAST, SLOW)}
    made = Consoles(
        cast(Any, SimpleNamespace(attach=attach)), cast(Any, SimpleNamespace(live_containers=live_containers)), tmp_path
    )
    await made.open()
    yield begun, goes_on
    await made.close()


async def test_a_slow_attach_holds_up_its_own_container_alone(
    consoles: tuple[asyncio.Event, asyncio.Event], tmp_path: Path
) -> None:
    begun, goes_on = consoles
    slow = [asyncio.create_task(dial(tmp_path, SLOW)) for _ in range(2)]
    async with asyncio.timeout(PATIENCE):
        await begun.wait()
        await (await dial(tmp_path, FAST)).close()
        assert not any(task.done() for task in slow)
        goes_on.set()
        lines = await asyncio.gather(*slow)
    for line in lines:
        with contextlib.suppress(OSError):
            await line.close()
