"""The scheduler's end of a console, on a real Docker engine: one viewer at a time, and nobody keeps much."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from scheduler.containers import consoles as module
from scheduler.containers.consoles import Consoles
from scheduler.engines.base import Launch
from scheduler.engines.docker.engine import DockerEngine
from tests.support.eventually import eventually
from web.console.frames import PAYLOAD_LIMIT, WINDOW, FrameKind, Line, dial
from web.errors import Problem

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]


@pytest.fixture
async def consoles(docker_engine: DockerEngine, tmp_path: Path) -> AsyncIterator[Consoles]:
    opened = Consoles(docker_engine, cast(Any, SimpleNamespace(live_containers={})), tmp_path)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
def launched(docker_engine: DockerEngine, consoles: Consoles, a_launch: Launcher) -> Callable[..., Any]:
    async def launch(*command: str, **fields: Any) -> UUID:
        made = a_launch(*command, **{"interactive": True, **fields})
        await consoles.hold(made.id, (await docker_engine.launch(made)).engine_id)
        return UUID(made.id)

    return launch


async def shown(line: Line, wanted: int, *, taken: bool = True) -> bytes:
    """At least so many bytes of output, or what came before its end."""
    seen = b""
    while len(seen) < wanted and (frame := await line.read()) and frame[0] is not FrameKind.END:
        if frame[0] in (FrameKind.OUTPUT, FrameKind.ERRORS):
            seen += frame[1]
            if taken:
                await line.send(FrameKind.TAKEN, struct.pack("!I", len(frame[1])))
    return seen


async def test_a_newer_viewer_takes_over(consoles: Consoles, launched: Any, tmp_path: Path) -> None:
    container = await launched("cat")
    older = await dial(tmp_path, container)
    await older.send(FrameKind.INPUT, b"one")
    assert await shown(older, 3) == b"one"
    newer = await dial(tmp_path, container)
    while frame := await older.read():
        last = frame
    assert (last[0], json.loads(last[1])["error"]["code"]) == (FrameKind.REFUSED, "console_taken")
    await newer.send(FrameKind.INPUT, b"two")
    assert await shown(newer, 3) == b"two"
    await newer.send(FrameKind.END)
    assert await shown(newer, 1) == b""  # its end
    for line in (older, newer):
        await line.close()


async def test_what_nobody_saw_is_shown_to_the_next_who_looks(
    consoles: Consoles, launched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST", 0.01)
    container = await launched("/bin/sh", "-c", "seq 1 30000; cat")
    console = consoles._consoles[str(container)]
    await eventually(lambda: console._unseen and console._unseen[-1][1].endswith(b"30000\n"))
    assert sum(len(data) for _, data in console._unseen) <= module.KEPT
    line = await dial(tmp_path, container)
    await line.send(FrameKind.INPUT, b"more")
    await line.send(FrameKind.END)
    seen = await shown(line, 1 << 30)
    assert seen.endswith(b"\n30000\nmore")
    await line.close()


async def test_a_viewer_that_takes_nothing_is_sent_no_more_than_the_window(
    consoles: Consoles, launched: Any, tmp_path: Path
) -> None:
    line = await dial(tmp_path, await launched("/bin/sh", "-c", "yes $(printf %01023d 7) | head -c 3000000"))
    first = await shown(line, WINDOW, taken=False)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(line.read(), 0.5)
    assert len(first) < WINDOW + PAYLOAD_LIMIT
    await line.send(FrameKind.TAKEN, struct.pack("!I", len(first)))
    assert len(first) + len(await shown(line, 1 << 30)) == 3_000_000
    await line.close()


async def test_a_viewer_that_sends_more_than_the_window_is_cut_off_and_no_other(
    consoles: Consoles, launched: Any, tmp_path: Path
) -> None:
    container = await launched("/bin/sh", "-c", "read line; echo $line; exec sleep 600")
    line = await dial(tmp_path, container)
    for _ in range(100):
        await line.send(FrameKind.INPUT, bytes(PAYLOAD_LIMIT))
    while await line.read():
        pass
    await line.close()
    await (await dial(tmp_path, container)).close()


async def test_after_its_end_there_is_no_console(consoles: Consoles, launched: Any, tmp_path: Path) -> None:
    container = await launched("true")
    line = await dial(tmp_path, container)
    assert await shown(line, 1) == b""
    await line.close()
    await eventually(lambda: not consoles._consoles)
    with pytest.raises(Problem, match="The container has ended"):
        await dial(tmp_path, container)
