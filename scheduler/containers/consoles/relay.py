"""This node's end of what the web side of another host is shown: terminals and output of containers that run here.

An order is a row in the database, of which a hint says that it is there (web/relay/). It is taken once. What passes
then does so in a thread of its own: the loop that decides is not asked to read logs or to seal anything. A terminal's
session is a connection to this host's own socket for them, and is held to what that allows.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError

from web.budgets import Places
from web.console import output
from web.console.frames import (
    HIGHEST_PORT,
    PAYLOAD_LIMIT,
    BadFrame,
    Frame,
    FrameKind,
    Line,
    connect_to_port,
    refusal,
    socket_path,
)
from web.console.relayed import PLACE
from web.errors import Problem
from web.logs import ById
from web.models import RelayOrder
from web.relay.carrier import Side
from web.relay.sessions import sessions

log = logging.getLogger(__name__)

SAYS_WITHIN = 10.0  # seconds
RELAYED = 384  # sessions at once for the web side of another host; each takes a connection to Redis, and 512 KiB there
FULL = Problem("too_many_requests", "This host shows enough of its containers already; try again later.", 429)


class Relay:
    """`take` gives the orders that are there, and nobody else gets them. `run` is for the scheduler's own loop."""

    def __init__(self, home: Path, take: Callable[[], Awaitable[list[RelayOrder]]]) -> None:
        self._home, self._take = home, take
        self._wake = asyncio.Event()
        self._places = Places(RELAYED)

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """For ever. Without Redis nobody can ask."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not settings.REDIS_URL:
                continue
            try:
                for order in await self._take():
                    sessions().keep(self._serve(order))
            except DatabaseError as error:
                log.error("what is to be shown of containers here cannot be read: %s", error)

    async def _serve(self, order: RelayOrder) -> None:
        place = self._places.take("")
        try:
            if place and order.kind == RelayOrder.Kind.TERMINAL:
                await sessions().carry(order.pk, order.key, Side.NODE, self._consoles())
                return
            near, far = socket.socketpair()
            line = Line(*await asyncio.open_unix_connection(sock=near, limit=2 * PAYLOAD_LIMIT))
            carrying = asyncio.create_task(sessions().carry(order.pk, order.key, Side.NODE, far))
            try:
                if not place:
                    await line.send(*_refused(FULL))
                elif order.kind == RelayOrder.Kind.PORT:
                    await self._connect(order.container_id, line)
                else:
                    await _show(str(order.container_id), line)
            finally:
                await line.close()
                await carrying
        except (BadFrame, OSError) as error:
            log.warning("what was relayed of container %s has ended: %s", ById(str(order.container_id)), error)
        finally:
            if place:
                place.free()

    async def _connect(self, container: UUID, line: Line) -> None:
        """Passes bytes between them and a port of the container, until either side ends. Raises BadFrame, OSError."""
        async with asyncio.timeout(SAYS_WITHIN):
            asked = _decoded(await line.read(), FrameKind.CONNECT)
        try:
            port = asked["port"]
            if type(port) is not int or not 0 <= port <= HIGHEST_PORT:
                raise BadFrame("a CONNECT to no port")
            connection, which = await connect_to_port(self._home, container, port)
        except KeyError:
            raise BadFrame("a CONNECT to no port") from None
        except Problem as problem:
            await line.send(*_refused(problem))
            return
        await line.send(FrameKind.OPEN, which)
        await line.join(*await asyncio.open_connection(sock=connection, limit=PAYLOAD_LIMIT))

    def _consoles(self) -> socket.socket:
        """Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with socket_path(self._home) as path:
            connection.connect(path)
        return connection


async def _show(container: str, line: Line) -> None:
    """A container's output, until it is whole or they have hung up. Raises BadFrame, TimeoutError."""
    async with asyncio.timeout(SAYS_WITHIN):
        asked = _asked(await line.read())
    try:
        await asyncio.to_thread(output.is_here, UUID(container))
    except Problem as problem:
        await line.send(*_refused(problem))
        return
    await line.send(FrameKind.OPEN)
    over = asyncio.create_task(line.read())
    showing = asyncio.create_task(_pass_on(UUID(container), line, over, **asked))
    try:
        await asyncio.wait([over, showing], return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            showing.result()
    finally:
        for task in (over, showing):
            task.cancel()
        await asyncio.gather(over, showing, return_exceptions=True)


async def _pass_on(container: UUID, line: Line, over: asyncio.Future[Any], *, tail: int | None, start: int | None,
                   follow: bool) -> None:  # fmt: skip
    pieces = output.followed(container, over, tail, start) if follow else output.written(container, tail, start)
    async for place, piece in pieces:
        await line.send(FrameKind.LOGGED, PLACE.pack(place) + piece)
    await line.send(FrameKind.END)


def _asked(frame: Frame | None) -> dict[str, Any]:
    """What a LOG asks for. Raises BadFrame."""
    asked = _decoded(frame, FrameKind.LOG)
    try:
        numbers = {name: asked[name] for name in ("tail", "start")}
    except KeyError:
        raise BadFrame("a LOG that cannot be read") from None
    if not all(each is None or (type(each) is int and 0 <= each < 2**63) for each in numbers.values()):
        raise BadFrame("a LOG from no place")
    return {**numbers, "follow": asked.get("follow") is True}


def _decoded(frame: Frame | None, kind: FrameKind) -> dict[str, Any]:
    """What the first frame says, in JSON. Raises BadFrame."""
    if frame is None or frame[0] is not kind:
        raise BadFrame(f"{kind.name} is to be said first")
    try:
        asked = json.loads(frame[1])
    except (ValueError, RecursionError):
        raise BadFrame(f"a {kind.name} that cannot be read") from None
    if not isinstance(asked, dict):
        raise BadFrame(f"a {kind.name} that cannot be read")
    return asked


def _refused(problem: Problem) -> Frame:
    return FrameKind.REFUSED, refusal(problem).encode()
