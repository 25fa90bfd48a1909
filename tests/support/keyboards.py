"""The scheduler's end of consoles, for tests of what is in front of it: real programs on real terminals."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.eventually import PATIENCE
from web.console.frames import WINDOW, FrameKind, Line, socket_path

CHUNK = 16 << 10


class Keyboards:
    """`said` is what each line was opened with. What is shown is held to the window, as the scheduler does."""

    def __init__(self, home: Path, *command: str) -> None:
        self._home, self._command = home, command
        self.said: list[tuple[FrameKind, Any]] = []
        self.sent = 0  # bytes of output
        self.pids: list[int] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()], daemon=True)

    def __enter__(self) -> "Keyboards":
        self._thread.start()
        self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        self._loop.close()

    def go_away(self) -> None:
        """As a scheduler that is stopped: no end is announced."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        (self._home / "consoles").mkdir(exist_ok=True)
        with socket_path(self._home) as path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            server = await asyncio.start_unix_server(self._answer, path, limit=1 << 20)
        self._ready.set()
        await self._over.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(reader, writer)
        frame = await line.read()
        assert frame is not None
        self.said.append((frame[0], frame[1].decode() if frame[0] is FrameKind.OPEN else json.loads(frame[1])))
        pid, screen = pty.fork()
        if pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execvp(self._command[0], list(self._command))
        self.pids.append(pid)
        await line.send(FrameKind.OPEN)
        shown = _Shown()
        showing = asyncio.create_task(self._show(line, screen, shown))
        try:
            while frame := await line.read():
                kind, data = frame
                if kind is FrameKind.INPUT:
                    await asyncio.to_thread(os.write, screen, data)
                    await line.send(FrameKind.TAKEN, struct.pack("!I", len(data)))
                elif kind is FrameKind.RESIZE:
                    rows, columns = struct.unpack("!HH", data)
                    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
                elif kind is FrameKind.TAKEN:
                    shown.take(struct.unpack("!I", data)[0])
        finally:
            os.kill(pid, signal.SIGKILL)
            try:
                await asyncio.gather(showing, return_exceptions=True)
                await asyncio.to_thread(os.waitpid, pid, 0)
            finally:
                os.close(screen)
                await line.close()

    async def _show(self, line: Line, screen: int, shown: "_Shown") -> None:
        while True:
            await shown.room()
            try:
                data = await asyncio.to_thread(os.read, screen, CHUNK)
            except OSError:
                break
            shown.untaken += len(data)
            self.sent += len(data)
            await line.send(FrameKind.OUTPUT, data)
        await line.send(FrameKind.END)


class _Shown:
    def __init__(self) -> None:
        self.untaken = 0
        self._news = asyncio.Event()

    def take(self, size: int) -> None:
        self.untaken -= size
        self._news.set()

    async def room(self) -> None:
        while self.untaken >= WINDOW:
            self._news.clear()
            await self._news.wait()


@contextlib.contextmanager
def keyboards(home: Path, *command: str) -> Iterator[Keyboards]:
    with Keyboards(home, *command) as made:
        yield made
