"""The streams of a program in a container. On this host they are the program's own, handed over by the scheduler, and
nothing of them passes its loop; a terminal, and what runs on another host, comes in frames (web/console/frames.py)."""

import asyncio
import os
import socket
import struct
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from django.conf import settings

from web.console.frames import (
    PAYLOAD_LIMIT,
    WINDOW,
    FrameKind,
    Line,
    ask,
    asking,
    connect,
    problem_of,
    start_with_streams,
)
from web.errors import Problem
from web.models import Container
from web.relay.reaching import Kind, found_elsewhere, reach

CHUNK = 128 << 10  # bytes
WENT_AWAY = Problem("scheduler_away", "The connection to the scheduler was lost. The container continues.", 503)
_DOCKERS = struct.Struct("!BxxxI")
ERRORS = 2  # as Docker numbers them


Show = Callable[[bool, bytes], Awaitable[None]]
"""Takes a piece of output, or, where the first is true, of errors; returns when there is room for more."""


class Streams(Protocol):
    async def pump(self, show: Show) -> None:
        """Shows what it writes until it has written its last. Raises Problem, BadFrame."""

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more. Of a program that has ended, it is dropped."""

    def end_input(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...

    async def exit_code(self) -> int | None:
        """After `pump`. None: nobody knows."""

    async def close(self) -> None:
        """Ends the program if it has not ended."""


class Framed:
    """Over a line to the scheduler that has answered with OPEN."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._code: int | None = None
        self._untaken = 0
        self._room = asyncio.Event()

    async def pump(self, show: Show) -> None:
        while frame := await self._line.read():
            match frame:
                case (FrameKind.OUTPUT | FrameKind.ERRORS as kind, data):
                    await show(kind is FrameKind.ERRORS, data)
                    await self._line.send(FrameKind.TAKEN, struct.pack("!I", len(data)))
                case (FrameKind.TAKEN, size):
                    self._untaken -= struct.unpack("!I", size)[0]
                    self._room.set()
                case (FrameKind.EXIT, code):
                    (self._code,) = struct.unpack("!i", code)
                case (FrameKind.REFUSED, payload):
                    raise problem_of(payload)
                case (FrameKind.END, _):
                    return
        raise WENT_AWAY

    async def write(self, data: bytes) -> None:
        for at in range(0, len(data), PAYLOAD_LIMIT):
            piece = data[at : at + PAYLOAD_LIMIT]
            while self._untaken + len(piece) > WINDOW:
                self._room.clear()
                await self._room.wait()
            self._untaken += len(piece)
            await self._line.send(FrameKind.INPUT, piece)

    def end_input(self) -> None:
        self._ending = asyncio.create_task(self._line.send(FrameKind.END))

    async def resize(self, rows: int, columns: int) -> None:
        await self._line.send(FrameKind.RESIZE, struct.pack("!HH", rows, columns))

    async def exit_code(self) -> int | None:
        return self._code

    async def close(self) -> None:
        await self._line.hang_up()


class Own:
    """The program's own; `line` says its exit code, and ends it."""

    def __init__(
        self, line: Line, outputs: list[StreamReader], writer: StreamWriter, transports: Sequence[asyncio.BaseTransport]
    ) -> None:
        """`transports`: of the outputs."""
        self._line, self._outputs, self._writer, self._transports = line, outputs, writer, transports

    async def pump(self, show: Show) -> None:
        if len(self._outputs) == 1:
            await self._pump_framed(self._outputs[0], show)
        else:
            await asyncio.gather(*(_pump(reader, bool(n), show) for n, reader in enumerate(self._outputs)))

    async def _pump_framed(self, reader: StreamReader, show: Show) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                which, left = _DOCKERS.unpack(await reader.readexactly(_DOCKERS.size))
                while left and (data := await reader.read(min(CHUNK, left))):
                    left -= len(data)
                    await show(which == ERRORS, data)

    async def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            with suppress(ConnectionError):
                self._writer.write(data)
                await self._writer.drain()

    def end_input(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        pass  # it has no terminal

    async def exit_code(self) -> int | None:
        await self._line.send(FrameKind.END)
        code = None
        while frame := await self._line.read():
            match frame:
                case (FrameKind.EXIT, payload):
                    (code,) = struct.unpack("!i", payload)
                case (FrameKind.END, _):
                    return code
        raise WENT_AWAY

    async def close(self) -> None:
        for transport in self._transports:
            if not transport.is_closing():
                transport.close()
        with suppress(AttributeError):  # asyncio's, of a pipe that has been closed already
            self._writer.transport.abort()
        await self._line.hang_up()


async def _pump(reader: StreamReader, errors: bool, show: Show) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            await show(errors, data)


async def start(container: Container, program: dict[str, Any]) -> Streams:
    """Raises Problem."""
    node = await found_elsewhere(container)
    if node is None and not program["tty"]:
        return await _start_here(container, program)
    asked = asking(container.pk, program)
    if node is None:
        line = await connect(settings.GPUSHARE_HOME)
    else:
        connection = await reach(node, Kind.TERMINAL)
        line = Line(*await asyncio.open_unix_connection(sock=connection, limit=2 * PAYLOAD_LIMIT))
    return Framed(await ask(line, asked))


async def _start_here(container: Container, program: dict[str, Any]) -> Streams:
    asked = asking(container.pk, {**program, "streams": True})
    connection, taken = await asyncio.to_thread(start_with_streams, settings.GPUSHARE_HOME, asked)
    line = Line(*await asyncio.open_unix_connection(sock=connection, limit=2 * PAYLOAD_LIMIT))
    if len(taken) == 1:
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=taken[0]), limit=CHUNK)
        return Own(line, [reader], writer, [])
    loop = asyncio.get_running_loop()
    keyboard, *screens = (os.fdopen(each, "rb" if n else "wb", 0) for n, each in enumerate(taken))
    readers = [StreamReader(limit=CHUNK) for _ in screens]
    transports = [
        (await loop.connect_read_pipe(partial(StreamReaderProtocol, reader), screen))[0]
        for reader, screen in zip(readers, screens, strict=True)
    ]
    transport, protocol = await loop.connect_write_pipe(lambda: StreamReaderProtocol(StreamReader()), keyboard)
    return Own(line, readers, StreamWriter(transport, protocol, None, loop), transports)
