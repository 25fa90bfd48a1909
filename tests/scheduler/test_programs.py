"""One more program in a container, over the scheduler's socket: it waits for who looks, and ends with who leaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from scheduler.containers.consoles import Consoles
from scheduler.containers.consoles.programs import run
from scheduler.engines.base import Output
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import empty_shim
from tests.engines.processes import a_launch
from tests.support.eventually import PATIENCE, eventually
from tests.support.running import runs, seconds
from web.console.frames import PAYLOAD_LIMIT, WINDOW, FrameKind, Line, dial
from web.errors import Problem

__all__ = ["empty_shim"]


@pytest.fixture
async def container(tmp_path: Path, empty_shim: Path) -> AsyncIterator[UUID]:
    engine = ProcessEngine(tmp_path / "processes", RuntimeEnvironment(empty_shim))
    await engine.start()
    launch = a_launch(tmp_path, "sleep", "600")
    status = await engine.launch(launch)
    live_containers = {launch.id: SimpleNamespace(finished=False, engine_id=status.engine_id, swap="")}
    consoles = Consoles(engine, cast(Any, SimpleNamespace(live_containers=live_containers)), tmp_path)
    await consoles.open()
    yield UUID(launch.id)
    await consoles.close()
    await engine.kill(status.engine_id)
    await engine.close()


def asked(*command: str, **more: Any) -> dict[str, Any]:
    return {"command": list(command), "interactive": True, "tty": False, "rows": 24, "columns": 80, **more}


async def frames_of(line: Line) -> list[tuple[FrameKind, bytes]]:
    """All frames, with all output taken."""
    frames = []
    async with asyncio.timeout(PATIENCE):
        while frame := await line.read():
            frames.append(frame)
            if frame[0] in (FrameKind.OUTPUT, FrameKind.ERRORS):
                await line.send(FrameKind.TAKEN, struct.pack("!I", len(frame[1])))
            if frame[0] is FrameKind.END:
                break
    await line.close()
    return frames


async def test_output_errors_exit_code_and_the_end_come_in_this_order(container: UUID, tmp_path: Path) -> None:
    line = await dial(tmp_path, container, asked("sh", "-c", "echo out; echo wrong >&2; exit 7"))
    frames = await frames_of(line)
    assert sorted(frames[:-2]) == [(FrameKind.OUTPUT, b"out\n"), (FrameKind.ERRORS, b"wrong\n")]
    assert frames[-2:] == [(FrameKind.EXIT, struct.pack("!i", 7)), (FrameKind.END, b"")]


@pytest.mark.parametrize("tty", [True, False], ids=["terminal", "pipes"])
async def test_who_takes_nothing_is_sent_no_more_than_the_window_and_others_are_not_held_up(
    container: UUID, tmp_path: Path, tty: bool
) -> None:
    words = ("yes", seconds())
    still = await dial(tmp_path, container, asked(*words, tty=tty))
    seen = 0
    with contextlib.suppress(TimeoutError):
        while frame := await asyncio.wait_for(still.read(), 2 if seen >= WINDOW else PATIENCE):
            seen += len(frame[1])
    assert frame is not None  # it was not cut off
    assert WINDOW <= seen < WINDOW + PAYLOAD_LIMIT
    frames = await frames_of(await dial(tmp_path, container, asked("echo", "meanwhile")))
    assert frames[0] == (FrameKind.OUTPUT, b"meanwhile\n")
    assert runs(*words)
    await still.close()
    await eventually(lambda: not runs(*words))


async def test_who_types_more_than_the_window_is_cut_off_and_the_program_ends(container: UUID, tmp_path: Path) -> None:
    words = ("sleep", seconds())
    line = await dial(tmp_path, container, asked(*words))
    await eventually(lambda: runs(*words))
    for _ in range(100):
        await line.send(FrameKind.INPUT, bytes(PAYLOAD_LIMIT))
    while await line.read():
        pass
    await line.close()
    await eventually(lambda: not runs(*words))


async def test_what_cannot_be_started_is_refused_in_a_sentence(container: UUID, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="Cannot start it: /no/such: No such file or directory") as refused:
        await dial(tmp_path, container, asked("/no/such"))
    assert (refused.value.code, refused.value.status) == ("cannot_start", 400)


async def test_in_a_container_that_is_not_there_nothing_is_started(container: UUID, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="The container has ended"):
        await dial(tmp_path, UUID(int=0), asked("true"))


async def test_one_that_is_called_off_while_it_ends_is_ended_all_the_same() -> None:
    """As where somebody hangs up, and the scheduler is stopped at that moment."""
    ends, closed = asyncio.Event(), asyncio.Event()

    class Program:
        async def read(self) -> tuple[Output, bytes]:
            try:
                await asyncio.Event().wait()
            finally:
                ends.set()
                await asyncio.sleep(0.1)
            raise AssertionError

        async def close(self) -> None:
            closed.set()

    class Host:
        async def exec(self, *_: object) -> Program:
            return Program()

    ours, theirs = socket.socketpair()
    line = Line(*await asyncio.open_unix_connection(sock=ours))
    with theirs:
        running = asyncio.create_task(run(cast(Any, Host()), "id", asked("cat"), line))
        await asyncio.to_thread(theirs.recv, 1)  # it is open
        theirs.shutdown(socket.SHUT_WR)
        await ends.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert closed.is_set()
    await line.close()
