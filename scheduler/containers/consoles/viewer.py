"""One connection that looks at a keyboard and screen."""

import asyncio
import contextlib
import struct

from scheduler.engines.base import Attached, EngineError, Output
from web.console.frames import CLOSES_WITHIN, WINDOW, BadFrame, FrameKind, Line, refusal
from web.errors import Problem

TAKEN_OVER = Problem("console_taken", "This console was opened elsewhere.", 409)
KINDS = {Output.OUT: FrameKind.OUTPUT, Output.ERR: FrameKind.ERRORS}


class Viewer:
    """One connection that looks at a console and types into it."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._keys: asyncio.Queue[bytes] = asyncio.Queue()  # empty bytes: the input's end
        self._said_all = False
        self._untyped = 0
        self._unseen = 0
        self._news = asyncio.Event()
        self._gone = False

    async def show(self, kind: FrameKind, data: bytes) -> bool:
        """Waits until the person has seen enough of what came before. False if they have gone."""
        while self._unseen >= WINDOW and not self._gone:
            self._news.clear()
            await self._news.wait()
        if self._gone:
            return False
        self._unseen += len(data)
        await self.line.send(kind, data)
        return True

    async def dismiss(self) -> None:
        """A viewer that reads nothing any more gets no message: what it has not taken is in the way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSES_WITHIN):
                await self.line.send(FrameKind.REFUSED, refusal(TAKEN_OVER).encode())
        await self.line.close()

    def leave(self) -> None:
        self._gone = True
        self._news.set()

    async def listen(self, attached: Attached) -> None:
        """Until they hang up. Raises BadFrame."""
        typing = asyncio.create_task(self._type(attached))
        try:
            while (frame := await self.line.read()) and not self._gone:
                await self._hear(*frame, attached)
        finally:
            typing.cancel()

    async def _hear(self, kind: FrameKind, payload: bytes, attached: Attached) -> None:
        if kind is FrameKind.INPUT and payload:
            self._untyped += len(payload)
            if self._untyped > WINDOW:
                raise BadFrame("more input than was to be sent")
            self._keys.put_nowait(payload)
        elif kind is FrameKind.END and not self._said_all:
            self._said_all = True
            self._keys.put_nowait(b"")
        elif kind is FrameKind.TAKEN:
            self._unseen = max(0, self._unseen - struct.unpack("!I", payload)[0])
            self._news.set()
        elif kind is FrameKind.RESIZE:
            with contextlib.suppress(EngineError):  # it has ended, or Docker is away: a later one may do
                await attached.resize(*struct.unpack("!HH", payload))

    async def _type(self, attached: Attached) -> None:
        """Beside the listening: a program that does not read its input must not hide that somebody has hung up."""
        while keys := await self._keys.get():
            await attached.write(keys)
            self._untyped -= len(keys)
            await self.line.send(FrameKind.TAKEN, struct.pack("!I", len(keys)))
        attached.end_input()
