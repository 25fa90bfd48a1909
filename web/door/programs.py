"""A session of ssh: one program in the container, with or without a terminal."""

import asyncio
import logging
from typing import Any

from asyncssh import SSHServerSession

from web.budgets import Places
from web.console.frames import WINDOW, BadFrame
from web.door.streams import WENT_AWAY, Streams, start
from web.door.visit import Visit
from web.errors import Problem
from web.logs import ById
from web.spec.inside.reserved import SFTP, SOCKETS
from web.spec.requests import SHELL, ExecSpec

log = logging.getLogger(__name__)

FAILED = 255  # exit code of ssh where no program has one
ENDING = {"INT", "TERM", "HUP", "KILL", "QUIT", "ABRT"}  # signals by which a program without a terminal is ended
TYPED = {"INT": b"\x03", "QUIT": b"\x1c"}  # what a terminal makes these signals of
# Beside the container's socket; what the image has goes before nothing of ours.
START_SFTP = ("/bin/sh", "-c", f'at=${{GPUSHARE_SOCKET%/*}}; exec "${{at:-{SOCKETS}}}/{SFTP}" "$@"', "sh")
places = Places("consoles", "consoles_in_all")


class Piped:
    """One end of a channel: what comes by it is typed into a program, and what that writes is sent, each as soon as
    there is room. `visit` says who asks, once they are in."""

    _channel: Any = None

    def __init__(self, visit: Visit) -> None:
        self._visit = visit
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()  # empty bytes: the input's end
        self._untyped = 0
        self._room = asyncio.Event()
        self._tasks = set[asyncio.Task[Any]]()

    def connection_made(self, chan: Any) -> None:
        self._channel = chan

    def session_started(self) -> None:
        self._room.set()

    def data_received(self, data: bytes, datatype: Any) -> None:
        self._untyped += len(data)
        self._typed.put_nowait(data)
        if self._untyped > WINDOW:
            asyncio.get_running_loop().call_soon(self._hold)

    def _hold(self) -> None:
        """Not while asyncssh delivers what it has kept: for a part of that it lets the client send a whole window more,
        so that it would keep more and more."""
        if self._untyped > WINDOW:
            self._channel.pause_reading()

    def eof_received(self) -> bool:
        self._typed.put_nowait(b"")
        return True

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        for task in self._tasks:
            task.cancel()

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(self, streams: Streams) -> None:
        """Until the program has written its last. Raises Problem, BadFrame."""
        typing = asyncio.create_task(self._type(streams))
        try:
            await streams.pump(self._show)
        finally:
            typing.cancel()

    async def _type(self, streams: Streams) -> None:
        while data := await self._typed.get():
            await streams.write(data)
            self._untyped -= len(data)
            if self._untyped <= WINDOW // 2:
                self._channel.resume_reading()
        streams.end_input()

    async def _show(self, errors: bool, data: bytes) -> None:
        await self._room.wait()
        if not self._channel.is_closing():
            (self._channel.write_stderr if errors else self._channel.write)(data)


async def ended(streams: Streams) -> None:
    """Whatever happens to us, the program ends: whoever cancels has gone."""
    await asyncio.shield(asyncio.create_task(streams.close()))


class Program(Piped, SSHServerSession[bytes]):
    def __init__(self, visit: Visit) -> None:
        super().__init__(visit)
        self._asked: dict[str, Any] = {"command": list(SHELL), "interactive": True, "tty": False}
        self._streams: Streams | None = None

    def pty_requested(self, term_type: str, term_size: Any, term_modes: Any) -> bool:
        self._asked["tty"] = True
        return True

    def shell_requested(self) -> bool:
        return True

    def exec_requested(self, command: str) -> bool:
        self._asked["command"] = ["/bin/sh", "-c", command]
        return True

    def subsystem_requested(self, subsystem: str) -> bool:
        self._asked["command"] = list(START_SFTP)
        return subsystem == "sftp"

    def session_started(self) -> None:
        super().session_started()
        self._keep(self._run())

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        if self._streams and 0 < width <= 10_000 and 0 < height <= 10_000:
            self._keep(self._streams.resize(height, width))

    def signal_received(self, signal: str) -> None:
        if self._asked["tty"] and signal in TYPED:
            self._typed.put_nowait(TYPED[signal])
        elif self._streams and signal in ENDING:
            self._keep(self._streams.close())

    def break_received(self, msec: int) -> bool:
        return False

    async def _run(self) -> None:
        code: int | None = FAILED
        try:
            place = places.require(self._visit.user.pk, "programs by ssh and consoles are open")
            try:
                code = await self._run_program()
            finally:
                place.free()
        except (Problem, BadFrame) as error:
            problem = error if isinstance(error, Problem) else WENT_AWAY
            self._channel.write_stderr(f"gpushare: {problem.message}\r\n".encode())
        except Exception:
            log.exception("ssh into container %s", ById(str(self._visit.container.pk)))
        self._channel.exit(FAILED if code is None else code)

    async def _run_program(self) -> int | None:
        columns, rows, *_ = self._channel.get_terminal_size()
        size = {"rows": rows, "columns": columns} if 0 < rows <= 10_000 and 0 < columns <= 10_000 else {}
        asked = ExecSpec.parse({**self._asked, **size})
        self._streams = streams = await start(self._visit.container, asked)
        try:
            await self._pass(streams)
            return await streams.exit_code()
        finally:
            await ended(streams)
