"""A container's output, wherever it is: this host's file, or what another host's scheduler shows of its own.

LOG asks for it, LOGGED frames bring it, each with its place in the output, and END says that it is whole. A session
that breaks off without END is begun again where it was, as soon as that host's scheduler is back: nobody sees a gap,
or anything twice.
"""

import asyncio
import contextlib
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]

from web.console import output
from web.console.frames import PAYLOAD_LIMIT, BadFrame, Frame, FrameKind, Line, ask, ask_now
from web.errors import Problem
from web.models import Container
from web.people import visitor
from web.relay.reaching import Kind, found_elsewhere, reach

AGAIN = 1.0  # seconds
PATIENCE = 300.0  # seconds that a host may be away in the middle
PLACE = struct.Struct("!Q")


class BrokenOff(Exception):
    """Some of the output was not sent. Whoever reads it is to see that its end is none."""


def begin(connection: socket.socket, container: Container, tail: int | None, *, follow: bool) -> None:
    """Asks for a container's output, for threads that may wait: `written` and `followed` go on. Raises Problem."""
    ask_now(connection, _log(container, tail, None, follow=follow))


async def written(container: Container, tail: int | None, connection: socket.socket | None) -> AsyncIterator[bytes]:
    """What is there. `connection`: to the host that has it, where it is begun; None: this one."""
    if connection is None:
        async for _, piece in output.written(container.pk, tail):
            yield piece
        return
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async for piece in _Far(container, never, tail, follow=False).read(connection):
        yield piece


async def followed(
    container: Container, look: Callable[[], Any], tail: int | None, connection: socket.socket | None
) -> AsyncIterator[bytes]:
    """And what comes, until the container has ended, wherever that is, or `look` raises a Problem (see `watch`)."""
    allowed = asyncio.create_task(visitor.watch(look))
    is_far = connection is not None
    try:
        while not allowed.done():
            if is_far:
                async for piece in _Far(container, allowed, tail, follow=True).read(connection):
                    yield piece
            else:
                async for _, piece in output.followed(container.pk, allowed, tail):
                    yield piece
            found = await database_sync_to_async(Container.objects.filter(pk=container.pk).first)()
            if found is None or found.node_id == container.node_id:
                return
            container, connection = found, None  # a Swarm has given it to another host
            is_far = await found_elsewhere(container) is not None
    finally:
        allowed.cancel()
        with contextlib.suppress(Problem, asyncio.CancelledError):
            await allowed


class _Far:
    """What another host has of one container's output."""

    def __init__(self, container: Container, allowed: asyncio.Future[Any], tail: int | None, *, follow: bool) -> None:
        self._container, self._allowed, self._follow, self._tail = container, allowed, follow, tail
        self._position: int | None = None

    async def read(self, connection: socket.socket | None) -> AsyncIterator[bytes]:
        """`connection`: where it is begun, if it is. Raises BrokenOff."""
        line = await _line(connection) if connection is not None else await self._reached()
        while line is not None:
            try:
                async for piece in self._shown(line):
                    yield piece
                return
            except BrokenOff:
                pass
            finally:
                await line.close()
            await self._pause()  # whoever opens and hangs up again and again is asked no more often than who is away
            line = await self._reached()

    async def _reached(self) -> Line | None:
        """From where it broke off. None if it may not be seen any more meanwhile. Raises BrokenOff after PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while not self._allowed.done() and (node := await found_elsewhere(self._container)):
            try:
                line = await _line(await reach(node, Kind.OUTPUT))
                return await ask(line, _log(self._container, self._tail, self._position, follow=self._follow))
            except Problem as problem:
                if problem.code == output.UNREADABLE:
                    raise BrokenOff(problem.message) from None
                if time.monotonic() > deadline:
                    raise BrokenOff(f"{node.name} was away for {PATIENCE:.0f} s") from None
            await self._pause()
        return None

    async def _pause(self) -> None:
        await asyncio.wait([self._allowed], timeout=AGAIN)

    async def _shown(self, line: Line) -> AsyncIterator[bytes]:
        """Until END. Raises BrokenOff."""
        try:
            while frame := await self._next(line):
                match frame:
                    case (FrameKind.END, _):
                        return
                    case (FrameKind.LOGGED, payload) if len(payload) > PLACE.size:
                        yield self._placed(payload)
                    case _:
                        raise BadFrame("no frame of an output")
        except BadFrame:
            raise BrokenOff from None
        if not self._allowed.done():
            raise BrokenOff

    def _placed(self, payload: bytes) -> bytes:
        """The bytes, which follow those before. Raises BadFrame."""
        (place,) = PLACE.unpack_from(payload)
        if self._position not in (None, place):
            raise BadFrame("not what comes next")
        piece = payload[PLACE.size :]
        self._position = place + len(piece)
        return piece

    async def _next(self, line: Line) -> Frame | None:
        """None once it is over, or may not be seen any more."""
        reading = asyncio.create_task(line.read())
        try:
            await asyncio.wait([reading, self._allowed], return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()


def _log(container: Container, tail: int | None, start: int | None, *, follow: bool) -> Frame:
    asked = {"container": str(container.pk), "tail": tail, "start": start, "follow": follow}
    return FrameKind.LOG, json.dumps(asked).encode()


async def _line(connection: socket.socket) -> Line:
    return Line(*await asyncio.open_unix_connection(sock=connection, limit=2 * PAYLOAD_LIMIT))
