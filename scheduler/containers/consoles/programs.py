"""One more program in a container, for one connection: it ends with it, whoever hangs up or dies."""

import asyncio
import os
import struct
from typing import Any

from scheduler import clock
from scheduler.containers.consoles.viewer import KINDS, Viewer
from scheduler.engines.base import Engine, EngineError, Exec, Executed
from scheduler.pace import Pace
from web.console.frames import BadFrame, FrameKind, Line, send_sockets
from web.errors import Problem

BYTES_A_SECOND = 4 << 20  # of output: more than a terminal can show; the program waits meanwhile


async def run(engine: Engine, engine_id: str, program: dict[str, Any], line: Line) -> None:
    """Until it ends or they hang up. Raises Problem if it cannot be started, and BadFrame."""
    asked = _checked(Exec(**program))
    try:
        executed = await engine.exec(engine_id, asked)
    except EngineError as error:
        raise Problem(error.code, str(error), error.status) from None
    if asked.streams:
        await _hand_over(executed, line)
        return
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


def _checked(asked: Exec) -> Exec:
    """As the web side makes it (ExecSpec), whoever speaks for that. Raises BadFrame."""
    sizes, switches = (asked.rows, asked.columns), (asked.interactive, asked.tty, asked.streams)
    words = asked.command if isinstance(asked.command, list) else ()
    if (
        not words
        or not all(isinstance(word, str) and "\0" not in word for word in words)
        or not all(type(each) is int and 0 < each < 1 << 16 for each in sizes)
        or not all(type(each) is bool for each in switches)
    ):
        raise BadFrame("an EXEC of no program")
    return asked


async def _hand_over(executed: Executed, line: Line) -> None:
    """Its streams, with OPEN. END from them asks for its exit code, which EXIT says."""
    taken = executed.take()
    ending: asyncio.Task[int | None] | None = None
    hearing = asyncio.create_task(line.read())
    try:
        try:
            send_sockets(line, taken, b"")
        finally:
            for descriptor in taken:
                os.close(descriptor)
        if (frame := await hearing) is None or frame[0] is not FrameKind.END:
            return
        hearing = asyncio.create_task(line.read())
        ending = asyncio.create_task(executed.exit_code())
        await asyncio.wait({ending, hearing}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done() and (code := ending.result()) is not None:
            await line.send(FrameKind.EXIT, struct.pack("!i", code))
        await line.send(FrameKind.END)
    finally:
        for task in filter(None, (ending, hearing)):
            task.cancel()
        try:
            await asyncio.gather(*filter(None, (ending, hearing)), return_exceptions=True)
        finally:
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
