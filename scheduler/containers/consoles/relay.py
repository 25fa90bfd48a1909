"""This node's end of what the web side of another host is shown: terminals, output and ports of containers here.

The link to that web side (link.py) is kept in a thread of its own: the loop that decides is not asked to read logs or
to seal anything. A terminal's stream is a connection to this host's own socket for them, and is held to what that
allows.
"""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

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
from web.relay.reaching import Kind

if TYPE_CHECKING:
    from scheduler.containers.consoles.link import Link, Open

log = logging.getLogger(__name__)

SAYS_WITHIN = 10.0  # seconds
RELAYED = 384  # streams at once
FULL = Problem("too_many_requests", "This host has too many open consoles and logs; try again later.", 429)


class Relay:
    """`publish` makes the key known by which the web side knows this scheduler. `run` is for the scheduler's loop."""

    def __init__(self, home: Path, publish: Callable[[str], None]) -> None:
        self._home, self._publish = home, publish
        self._places = Places(RELAYED)
        self._tasks = set[asyncio.Task[None]]()

    async def run(self) -> None:
        """For ever."""
        link = await asyncio.to_thread(_link, self._open)
        self._publish(link.public)
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="relay", daemon=True).start()
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(link.keep(), loop))

    def _open(self, kind: Kind) -> tuple[socket.socket, Callable[[], None]]:
        """What a new stream of this kind leads to, and what is to be called when it has ended. Raises OSError."""
        place = self._places.take("")
        if place and kind is Kind.TERMINAL:
            return self._consoles(), place.free
        near, far = socket.socketpair()
        task = asyncio.create_task(self._serve(near, kind if place else None))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return far, place.free if place else lambda: None

    async def _serve(self, connection: socket.socket, kind: Kind | None) -> None:
        """None: there is no place for it."""
        line = Line(*await asyncio.open_unix_connection(sock=connection, limit=2 * PAYLOAD_LIMIT))
        try:
            if kind is None:
                await line.send(*_refused(FULL))
            elif kind is Kind.PORT:
                await self._connect(line)
            else:
                await _show(line)
        except (BadFrame, OSError) as error:
            log.warning("a stream to the web side has ended: %s", error or type(error).__name__)
        finally:
            await line.close()

    async def _connect(self, line: Line) -> None:
        """Passes bytes between them and a port of a container, until either side ends. Raises BadFrame, OSError."""
        async with asyncio.timeout(SAYS_WITHIN):
            container, asked = _decoded(await line.read(), FrameKind.CONNECT)
        port = asked.get("port")
        if type(port) is not int or not 0 <= port <= HIGHEST_PORT:
            raise BadFrame("a CONNECT to no port")
        try:
            connection, which = await connect_to_port(self._home, container, port)
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


def _link(open_: "Open") -> "Link":
    from scheduler.containers.consoles.link import Link  # asyncssh takes 20 MiB that one host alone does not need

    return Link(open_)


async def _show(line: Line) -> None:
    """A container's output, until it is whole or they have hung up. Raises BadFrame, TimeoutError."""
    async with asyncio.timeout(SAYS_WITHIN):
        container, asked = _asked(await line.read())
    try:
        await asyncio.to_thread(output.is_here, container)
    except Problem as problem:
        await line.send(*_refused(problem))
        return
    await line.send(FrameKind.OPEN)
    over = asyncio.create_task(line.read())
    showing = asyncio.create_task(_pass_on(container, line, over, **asked))
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


def _asked(frame: Frame | None) -> tuple[UUID, dict[str, Any]]:
    """What a LOG asks for. Raises BadFrame."""
    container, asked = _decoded(frame, FrameKind.LOG)
    try:
        numbers = {name: asked[name] for name in ("tail", "start")}
    except KeyError:
        raise BadFrame("a LOG that cannot be read") from None
    if not all(each is None or (type(each) is int and 0 <= each < 2**63) for each in numbers.values()):
        raise BadFrame("a LOG from no place")
    return container, {**numbers, "follow": asked.get("follow") is True}


def _decoded(frame: Frame | None, kind: FrameKind) -> tuple[UUID, dict[str, Any]]:
    """Of which container the first frame speaks, and all that it says. Raises BadFrame."""
    if frame is None or frame[0] is not kind:
        raise BadFrame(f"{kind.name} is to be said first")
    try:
        asked = json.loads(frame[1])
        return UUID(asked["container"]), asked
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise BadFrame(f"a {kind.name} that cannot be read") from None


def _refused(problem: Problem) -> Frame:
    return FrameKind.REFUSED, refusal(problem).encode()
