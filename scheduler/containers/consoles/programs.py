"""One more program in a container, for one connection: it ends with it, whoever hangs up or dies."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

from scheduler import clock
from scheduler.containers.consoles.viewer import KINDS, Viewer
from scheduler.engines.base import Engine, EngineError, Exec, Executed
from scheduler.pace import Pace
from web.console.frames import FrameKind, Line
from web.errors import Problem

BYTES_A_SECOND = 4 << 20  # of output: more than a terminal can show; the program waits meanwhile


async def run(engine: Engine, engine_id: str, program: dict[str, Any], line: Line) -> None:
    """Until it ends or they hang up. Raises Problem if it cannot be started, and BadFrame."""
    try:
        executed = await engine.exec(engine_id, Exec(**program))
    except EngineError as error:
        raise Problem(error.code, str(error), error.status) from None
    viewer = Viewer(line)
    showing = listening = None
    try:
        await line.send(FrameKind.OPEN)
        showing = asyncio.create_task(_show(executed, viewer))
        listening = asyncio.create_task(viewer.listen(executed))
        await asyncio.wait({showing, listening}, return_when=asyncio.FIRST_COMPLETED)
        if listening.done():
            listening.result()
    finally:
        viewer.leave()
        for task in filter(None, (showing, listening)):
            task.cancel()
        try:
            await asyncio.gather(*filter(None, (showing, listening)), return_exceptions=True)
        finally:  # cancelled a second time, or in here for the first
            await executed.close()


async def _show(executed: Executed, viewer: Viewer) -> None:
    """What it prints without an end waits with it: for who looks, and for the pace of a console."""
    pace = Pace(BYTES_A_SECOND, clock.monotonic())
    while True:
        output, data = await executed.read()
        if not data:
            break
        await viewer.show(KINDS[output], data)
        while pause := pace.take(clock.monotonic(), len(data)):  # noqa: ASYNC110 (there is no event)
            await asyncio.sleep(pause)
    code = await executed.exit_code()
    if code is not None:
        await viewer.line.send(FrameKind.EXIT, struct.pack("!i", code))
    await viewer.line.send(FrameKind.END)
