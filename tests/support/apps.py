"""Applications in containers, the scheduler that leads to them, and the door of GPUSHARE_APPS, all in one process."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from web.console.frames import PORT, WAKING, FrameKind, Line, refusal, send_sockets, socket_path
from web.errors import Problem

Application = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LISTENS = 8888


class Scheduler:
    """Connects whoever asks to an application; port 8888 is the only one where one listens."""

    def __init__(self, application: Application) -> None:
        self.asked: list[Any] = []
        self.awake = True
        self._application = application
        self._ends: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, home: Path) -> None:
        (home / "consoles").mkdir(exist_ok=True)
        with socket_path(home) as path:
            self._server = await asyncio.start_unix_server(self._serve, path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        frame = await line.read()
        assert frame is not None
        assert frame[0] is FrameKind.CONNECT
        self.asked.append(json.loads(frame[1]))
        if not self.awake:
            await line.send(FrameKind.REFUSED, refusal(Problem(WAKING, "Its memory is away.", 503)).encode())
        elif self.asked[-1]["port"] not in (0, LISTENS):
            nothing = Problem("nothing_listens", "Nothing listens on that port yet.", 409)
            await line.send(FrameKind.REFUSED, refusal(nothing).encode())
        else:
            far, near = socket.socketpair()
            with far:
                send_sockets(line, [far.fileno()], PORT.pack(LISTENS))
            task = asyncio.get_running_loop().create_task(self._run(near))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await line.close()

    async def _run(self, near: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=near)
        self._ends.append(writer)
        await self._application(reader, writer)
        writer.close()

    async def hang_up(self) -> None:
        """As a container that ends."""
        for each in self._ends:
            each.transport.abort()
        await asyncio.gather(*(each.wait_closed() for each in self._ends), return_exceptions=True)

    async def close(self) -> None:
        self._server.close()
        await self.hang_up()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


async def capitals(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """No HTTP: what is said, in capitals."""
    while data := await reader.read(1 << 16):
        writer.write(data.upper())


@asynccontextmanager
async def open_at(home: Path, scheduler: Any, settings: Any) -> AsyncIterator[Any]:
    """A scheduler of a test's own, where the web side looks for one."""
    settings.GPUSHARE_HOME = home
    await scheduler.open(home)
    yield scheduler
    await scheduler.close()
