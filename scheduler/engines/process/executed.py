"""The scheduler's end of one more program in a local container (inside.py has the other)."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import socket
import struct
import termios
from asyncio.streams import StreamReader, StreamReaderProtocol, StreamWriter
from pathlib import Path
from typing import Any

from scheduler.engines.base import EngineError, Exec, Output
from scheduler.engines.process.keeper import address_in
from scheduler.engines.process.taken import cannot_start

CHUNK = 32 << 10  # bytes, the most in one piece of output
STARTS_WITHIN = 10.0  # seconds
LAST_WORDS = 1.0  # seconds for what is printed still, once it has ended; others may hold its output open
ANSWER = 4096  # bytes
NO_DOOR = "Nothing can be started in it: it is ending."


async def execute(folder: Path, asked: Exec) -> "Executed":
    """In the container that this folder is of. Raises EngineError."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    door.settimeout(STARTS_WITHIN)
    executed = Executed(door)
    try:
        its = executed.prepare(asked)
        try:
            with address_in(folder) as address:
                door.connect(address)
            message = {"command": list(asked.command), "tty": asked.tty, "alone": asked.streams}
            socket.send_fds(door, [json.dumps(message).encode()], its)
        finally:
            for descriptor in set(its):
                os.close(descriptor)
        await executed.open(streams=asked.streams)
    except OSError as error:  # TimeoutError is one
        await executed.close()
        raise EngineError(NO_DOOR, code="not_running") from error
    except BaseException:
        await executed.close()
        raise
    return executed


class Screen(StreamReaderProtocol):
    """A terminal's end is an error to whoever reads it, and asyncio forgets for an error what came before."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None)


class Executed:
    """What `Engine.exec` gives. `door`: hanging up there ends the program."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._terminal = self._keyboard = -1
        self._screens: list[int] = []
        self._writer: StreamWriter | None = None
        self._pieces: asyncio.Queue[tuple[Output, bytes]] = asyncio.Queue(2)
        self._code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.BaseTransport] = []

    def prepare(self, asked: Exec) -> list[int]:
        """The program's standard input, output and errors; our ends of them are kept. Raises OSError."""
        if asked.tty:
            self._terminal, its = pty.openpty()
            self._set_size(asked.rows, asked.columns)
            self._screens = [os.dup(self._terminal)]
            self._keyboard = os.dup(self._terminal) if asked.interactive else -1
            return [its] * 3
        stdin = os.open(os.devnull, os.O_RDONLY)
        if asked.interactive:
            os.close(stdin)
            stdin, self._keyboard = os.pipe()
        (out, prints), (err, complains) = os.pipe(), os.pipe()
        self._screens = [out, err]
        return [stdin, prints, complains]

    async def open(self, *, streams: bool = False) -> None:
        """Once the program is asked for. Raises EngineError if it cannot be started, and OSError."""
        self._door.setblocking(False)
        async with asyncio.timeout(STARTS_WITHIN):
            answer = await self._answer()
        if why := answer.get("error"):
            raise cannot_start(why)
        if not answer:
            raise ConnectionResetError
        self._tasks = [asyncio.create_task(self._wait())]
        if streams:
            return
        readers = [await self._reader(screen) for screen in self._screens]
        self._screens = []
        if self._keyboard >= 0:
            pipe, self._keyboard = os.fdopen(self._keyboard, "wb", 0), -1
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.connect_write_pipe(lambda: StreamReaderProtocol(StreamReader()), pipe)
            self._writer = StreamWriter(transport, protocol, None, loop)
        self._tasks.append(asyncio.create_task(self._pump(readers)))

    async def _reader(self, screen: int) -> StreamReader:
        reader = StreamReader(limit=CHUNK)
        pipe = os.fdopen(screen, "rb", 0)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: Screen(reader), pipe)
        self._transports.append(transport)
        return reader

    async def _answer(self) -> dict[str, Any]:
        """Empty once the other side has hung up."""
        said = await asyncio.get_running_loop().sock_recv(self._door, ANSWER)
        return dict(json.loads(said)) if said else {}

    async def _wait(self) -> None:
        answer: dict[str, Any] = {}
        try:
            with contextlib.suppress(OSError):
                answer = await self._answer()
        finally:
            if not self._code.done():
                self._code.set_result(answer.get("exit_code"))

    async def _pump(self, readers: list[StreamReader]) -> None:
        await asyncio.gather(*(self._pass(Output(number), reader) for number, reader in enumerate(readers, 1)))
        await self._pieces.put((Output.OUT, b""))

    async def _pass(self, which: Output, reader: StreamReader) -> None:
        while data := await self._piece(reader):
            await self._pieces.put((which, data))

    async def _piece(self, reader: StreamReader) -> bytes:
        """Nothing at its end, or where the program has ended and for a while nobody else has written."""
        reading = asyncio.create_task(reader.read(CHUNK))
        try:
            both: list[asyncio.Future[Any]] = [reading, self._code]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([reading], timeout=LAST_WORDS)
            return reading.result() if reading.done() else b""
        except OSError:  # of a terminal, when the last of its programs has gone
            return b""
        finally:
            reading.cancel()

    def take(self) -> list[int]:
        taken, self._keyboard, self._screens = [self._keyboard, *self._screens], -1, []
        return taken

    async def read(self) -> tuple[Output, bytes]:
        return await self._pieces.get()

    async def write(self, data: bytes) -> None:
        if self._writer and not self._writer.is_closing():
            with contextlib.suppress(ConnectionError):  # it has ended: reading tells
                self._writer.write(data)
                await self._writer.drain()

    def end_input(self) -> None:
        if self._writer and self._terminal < 0:
            self._writer.close()

    async def resize(self, rows: int, columns: int) -> None:
        if self._terminal >= 0:
            self._set_size(rows, columns)

    def _set_size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def exit_code(self) -> int | None:
        return await asyncio.shield(self._code)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:  # whoever closes it may be cancelled meanwhile
            self._hang_up()

    def _hang_up(self) -> None:
        for transport in self._transports:
            transport.close()
        if self._writer and not self._writer.is_closing():
            self._writer.transport.abort()
        self._door.close()
        for descriptor in (self._terminal, self._keyboard, *self._screens):
            if descriptor >= 0:
                os.close(descriptor)
        self._terminal, self._keyboard, self._screens = -1, -1, []
