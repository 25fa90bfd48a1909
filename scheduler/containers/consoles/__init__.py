"""Containers' keyboards and screens, for whoever the web lets in (web/console/frames.py).

Programs that people start beside a container's own have one connection each, and end with it: programs.py.

A console is attached before its container starts, so that no output is missed, and stays attached until the container
ends. One connection at a time looks at it; a newer one takes over from an older one, which may be half dead. While
nobody looks, the newest output is kept in memory for the next who does; the log has all of it anyway.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections import deque
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from scheduler import clock
from scheduler.containers.consoles import ports
from scheduler.containers.consoles.programs import BYTES_A_SECOND, run
from scheduler.containers.consoles.viewer import KINDS, Viewer
from scheduler.core.events import ActivityDetected
from scheduler.engines.base import Attached, Engine, EngineError
from scheduler.pace import Pace
from scheduler.parts import Background, is_set_within
from scheduler.sessions.broker import Broker
from web.console.frames import (
    PAYLOAD_LIMIT,
    PORT,
    WAKING,
    BadFrame,
    FrameKind,
    Line,
    refusal,
    send_sockets,
    socket_path,
)
from web.errors import Problem
from web.logs import ById

log = logging.getLogger(__name__)

FIRST = 10.0  # seconds in which whoever launched it comes to look; until then the container's output waits
KEPT = 64 << 10  # bytes of output that nobody has seen yet
STIRS = 1.0  # seconds from one report to the next, however many wait for a container
AT_ONCE = 1024  # connections and consoles: whoever has taken the web side over is not to take all descriptors here
SAYS_WITHIN = 10.0  # seconds until a connection has said whose console it wants


class Console:
    """One container's."""

    def __init__(self, attached: Attached) -> None:
        self.attached = attached
        self._viewer: Viewer | None = None
        self._came = asyncio.Event()
        self._unseen: deque[tuple[FrameKind, bytes]] = deque()
        self._kept = 0  # bytes in there
        self._ended = False
        self._in_order = asyncio.Lock()
        self._pace = Pace(BYTES_A_SECOND, clock.monotonic())

    async def run(self) -> None:
        """Until the container has written its last."""
        try:
            await is_set_within(self._came, FIRST)
            while not self._ended:
                output, data = await self.attached.read()
                if data:
                    self._unseen.append((KINDS[output], data))
                    self._kept += len(data)
                self._ended = not data
                await self._show()
                # What it writes meanwhile waits in the kernel or with Docker, and at last in its own `write`.
                while pause := self._pace.take(clock.monotonic(), len(data)):  # noqa: ASYNC110 (there is no event)
                    await asyncio.sleep(pause)
        finally:
            await self.attached.close()

    async def look(self, viewer: Viewer) -> None:
        """Shows it to this viewer, until it hangs up or another one comes."""
        before, self._viewer = self._viewer, viewer
        if before:
            before.leave()
            self._dismissing = asyncio.create_task(before.dismiss())  # not awaited: its connection may hang
        self._came.set()
        showing = asyncio.create_task(self._show())
        try:
            await viewer.listen(self.attached)
        finally:
            viewer.leave()
            if self._viewer is viewer:
                self._viewer = None
            await showing

    async def _show(self) -> None:
        async with self._in_order:
            while self._unseen and (viewer := self._viewer):
                if await viewer.show(*self._unseen[0]):
                    self._drop()
            if self._ended and self._viewer:
                await self._viewer.line.send(FrameKind.END)
        while not self._viewer and self._kept > KEPT:
            self._drop()

    def _drop(self) -> None:
        self._kept -= len(self._unseen.popleft()[1])


class Consoles:
    """All of this host's, and the socket that leads to them."""

    def __init__(self, engine: Engine, broker: Broker, home: Path) -> None:
        self._engine, self._broker, self._home = engine, broker, home
        self._consoles: dict[str, Console] = {}
        self._finding = WeakValueDictionary[str, asyncio.Lock]()  # by container: Docker may take seconds for one
        self._tasks = Background()
        self._stirred: dict[str, float] = {}  # container whose memory is away → when that was last reported

    async def open(self) -> None:
        folder = self._home / "consoles"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o2750)  # a web service of another user has to be of its group, as for the containers' output
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with socket_path(self._home) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            listener.bind(path)
            os.chmod(path, 0o660)
        self._server = await asyncio.start_unix_server(
            self._serve, sock=listener, limit=2 * PAYLOAD_LIMIT, backlog=AT_ONCE
        )

    async def close(self) -> None:
        self._server.close()
        await self._tasks.close()

    async def hold(self, container: str, engine_id: str) -> Console:
        """Attaches to a container for the rest of its life. Raises EngineError."""
        console = Console(await self._engine.attach(engine_id))
        self._consoles[container] = console
        self._tasks.begin(self._run(container, console))
        return console

    async def _run(self, container: str, console: Console) -> None:
        try:
            await console.run()
        except Exception:
            log.exception("the console of container %s", ById(container))
        finally:
            if self._consoles.get(container) is console:
                del self._consoles[container]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= AT_ONCE:
            writer.close()
            return
        if task := asyncio.current_task():
            self._tasks.keep(task)
        # Cancelled, we stop: asyncio's streams would log that as a fault, with a traceback.
        with contextlib.suppress(asyncio.CancelledError):
            await self._answer(Line(reader, writer))

    async def _answer(self, line: Line) -> None:
        try:
            async with asyncio.timeout(SAYS_WITHIN):
                frame = await line.read()
            match frame:
                case (FrameKind.OPEN, asked):
                    container = asked.decode()
                    # After a restart all terminals come back at once: one of which Docker is silent holds up no other.
                    async with self._finding.setdefault(container, asyncio.Lock()):
                        console = await self._find(container)
                    await line.send(FrameKind.OPEN)
                    await console.look(Viewer(line))
                case (FrameKind.EXEC, asked):
                    program = json.loads(asked)
                    container = program.pop("container")
                    engine_id = self._engine_id(container)
                    self._stir(container)
                    await run(self._engine, engine_id, program, line)
                case (FrameKind.CONNECT, asked):
                    wish = json.loads(asked)
                    engine_id, port = self._engine_id(wish["container"]), int(wish["port"])
                    if self._stir(wish["container"]):
                        raise Problem(WAKING, "Its memory is in host memory, and comes back when there is room.", 503)
                    await self._connect(engine_id, port, line)
                case _:
                    raise BadFrame("OPEN, EXEC or CONNECT is to be said first")
        except Problem as problem:
            await line.send(FrameKind.REFUSED, refusal(problem).encode())
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, TimeoutError) as error:
            log.warning("a connection to a console was closed: %s", error or "it said nothing")
        except ConnectionError:
            pass  # who asked has hung up before the answer
        finally:
            await line.close()

    async def _connect(self, engine_id: str, port: int, line: Line) -> None:
        """Raises Problem."""
        try:
            pid = await self._engine.first_pid(engine_id)
        except EngineError as error:
            raise Problem(error.code, str(error), error.status) from None
        with await ports.connect(pid, port, partial(self._engine.owns, engine_id)) as connection:
            send_sockets(line, [connection.fileno()], PORT.pack(connection.getpeername()[1]))

    def _stir(self, container: str) -> bool:
        """Whoever comes in wants it to compute: its memory is asked back if it gave way. Whether that is still away."""
        live = self._broker.live_containers[container]
        away = bool(live.swap and live.gave_way and not live.paused)  # who was paused by a person comes back by one
        if not away:
            self._stirred.pop(container, None)
        elif live.is_out and (now := self._broker.now()) - self._stirred.get(container, -STIRS) >= STIRS:
            self._stirred[container] = now
            self._broker.tell(ActivityDetected(now, container))
        return away

    async def _find(self, container: str) -> Console:
        """Held since its start; or attached to now, after a restart of ours. Raises Problem."""
        if console := self._consoles.get(container):
            return console
        try:
            return await self.hold(container, self._engine_id(container))
        except EngineError as error:
            raise Problem(error.code, str(error), error.status) from None

    def _engine_id(self, container: str) -> str:
        """Raises Problem if it does not live."""
        live = self._broker.live_containers.get(container)
        if live is None or live.finished or not live.engine_id:
            raise Problem("container_ended", "The container has ended.", 409)
        return live.engine_id
