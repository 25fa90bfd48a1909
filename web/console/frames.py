"""Frames between people and the keyboard of a container: over a WebSocket to us, over a UNIX socket to the scheduler.

The web never talks to an engine. One UNIX socket, GPUSHARE_HOME/consoles/console.sock, leads to the scheduler; its
folder lets in whoever may read the containers' output. The first frame is answered with OPEN or REFUSED: OPEN names the
container whose own keyboard is meant, EXEC the container and the program that is to be started in it. From then on
frames are passed on as they are, OPEN the first of them: on the WebSocket a binary message is a frame's kind (a byte)
and payload, and a text message is a refusal.

Neither side sends more than WINDOW bytes of INPUT, or of OUTPUT and ERRORS together, of which the other has not said
that they were TAKEN: typed in, or shown. So nobody in between ever has to wait or to keep much, and a terminal that
stands still for an hour does not look like a dead connection.

Nothing that passes is stored or logged here.
"""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

from web.errors import Problem, invalid
from web.relay.paths import short

PAYLOAD_LIMIT = 64 << 10  # bytes
WINDOW = 256 << 10  # bytes
ANSWERS_WITHIN = 15.0  # seconds; Docker may be slow
AWAY = Problem("scheduler_away", "The scheduler does not answer; try again shortly.", 503)
HIGHEST_PORT = 65535
STREAMS = 3  # descriptors that come with OPEN, at the most
PORT = struct.Struct("!H")  # what OPEN says to a CONNECT
WAKING = "waking"  # code of a CONNECT to a container whose memory is to come back first
SILENT = "The scheduler does not answer in time; try again shortly."
CLOSES_WITHIN = 1.0
TOO_LONG = (
    f"This command is too long: in JSON, where a letter beyond ASCII takes six bytes, it is more than "
    f"{PAYLOAD_LIMIT >> 10} KiB. Put it into a file in the container, and start that."
)
ENDS_WITHIN = 5.0  # more than a program has that ignores the end of its keyboard (scheduler/engines/base.py)
_HEAD = struct.Struct("!BI")


class FrameKind(IntEnum):
    INPUT = 0
    OUTPUT = 1
    ERRORS = 2
    RESIZE = 3  # rows and columns, two bytes each, big-endian
    END = 4  # of the input, or of the output
    TAKEN = 5  # how many bytes, four bytes, big-endian
    OPEN = 6
    REFUSED = 7  # {"status", "error"} as REST would answer
    EXIT = 8  # the exit code of what EXEC has started, four bytes, big-endian, signed; just before the END
    EXEC = 9  # {"container", "command", "interactive", "tty", "rows", "columns", "streams"}
    LOG = 10  # {"container", "tail", "start", "follow"}: output of another host's container (relayed.py)
    LOGGED = 11  # where in the output this is, eight bytes, big-endian, and the bytes
    CONNECT = 12  # {"container", "port"}: OPEN comes with a socket (SCM_RIGHTS), or over a relay the bytes follow


REFUSAL_LIMIT = 1000  # characters
FROM_SCHEDULERS = frozenset({
    FrameKind.OUTPUT, FrameKind.ERRORS, FrameKind.END, FrameKind.TAKEN, FrameKind.EXIT, FrameKind.REFUSED,
})  # fmt: skip
FROM_PEOPLE = frozenset({FrameKind.INPUT, FrameKind.RESIZE, FrameKind.END, FrameKind.TAKEN})
_LENGTHS: dict[int, int] = {FrameKind.RESIZE: 4, FrameKind.END: 0, FrameKind.TAKEN: 4, FrameKind.EXIT: 4}

Frame = tuple[FrameKind, bytes]


class BadFrame(ValueError):
    """The other side does not keep to the above."""


def frame_of(message: bytes) -> Frame:
    """What a person's WebSocket message says. Raises BadFrame."""
    if not message or message[0] not in FROM_PEOPLE:
        raise BadFrame("of no kind that people send")
    return _checked(message[0], message[1:])


def _checked(kind: int, payload: bytes) -> Frame:
    if len(payload) > PAYLOAD_LIMIT or _LENGTHS.get(kind, len(payload)) != len(payload):
        raise BadFrame("of a wrong length")
    return FrameKind(kind), payload


def refusal(problem: Problem) -> str:
    return json.dumps({"status": problem.status, **problem.as_dict()})


class Line:
    """Frames over the UNIX socket, either end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> Frame | None:
        """None once the other side has hung up. Raises BadFrame."""
        try:
            kind, length = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            if length > PAYLOAD_LIMIT:
                raise BadFrame("of a wrong length")
            return _checked(kind, await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except ValueError as error:
            raise BadFrame(str(error)) from None

    async def send(self, kind: FrameKind, payload: bytes = b"") -> None:
        """If the other side has hung up it is dropped without an error: whoever reads finds that out."""
        with contextlib.suppress(ConnectionError):
            self._writer.write(_HEAD.pack(kind, len(payload)) + payload)
            await self._writer.drain()

    def duplicate(self) -> socket.socket:
        """The socket itself, to be closed by whoever asks."""
        own: socket.socket = self._writer.get_extra_info("socket").dup()
        return own

    async def hang_up(self) -> None:
        """Waits until the other side has hung up, too: what it had started for us has ended then."""
        with contextlib.suppress(OSError):  # TimeoutError is one
            self._writer.write_eof()
            async with asyncio.timeout(ENDS_WITHIN):
                while await self._reader.read(PAYLOAD_LIMIT):
                    pass
        await self.close()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes bytes both ways, without frames, until either side ends. Closes the writer."""
        passing = [asyncio.create_task(each) for each in (_pass(self._reader, writer), _pass(reader, self._writer))]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in passing:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
            writer.close()

    async def close(self) -> None:
        """What was sent goes out first, unless the other side does not read it."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSES_WITHIN):
                await asyncio.shield(self._writer.wait_closed())  # its end is one future: others wait for it, too
        except OSError:  # TimeoutError is one
            self._writer.transport.abort()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PAYLOAD_LIMIT):
            writer.write(data)
            await writer.drain()


def socket_path(home: Path) -> contextlib.AbstractContextManager[str]:
    """Raises OSError if there is no folder."""
    return short(home / "consoles", "console.sock")


async def connect(home: Path) -> Line:
    """To the scheduler of this host. Raises Problem."""
    try:
        with socket_path(home) as path:
            return Line(*await asyncio.open_unix_connection(path))
    except OSError:
        raise AWAY from None


def asking(container: UUID, program: Mapping[str, Any] | None = None) -> Frame:
    """What asks for a container's keyboard and screen, or a `program`'s (an ExecSpec). Raises Problem."""
    kind, asked = FrameKind.OPEN, str(container).encode()
    if program is not None:
        kind, asked = FrameKind.EXEC, json.dumps({"container": str(container), **program}).encode()
        if len(asked) > PAYLOAD_LIMIT:
            raise invalid(TOO_LONG, "command")
    return kind, asked


def connecting(container: UUID, port: int) -> Frame:
    """What asks for a connection to a port in a container; port 0 is the only one that listens."""
    return FrameKind.CONNECT, json.dumps({"container": str(container), "port": port}).encode()


async def connect_to_port(home: Path, container: UUID, port: int) -> tuple[socket.socket, bytes]:
    """Of a container of this host, and which port it is (PORT). No thread is asked, which would have to wait for a
    processor first. Raises Problem."""
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    with _dial_now(home, 0) as scheduler:
        _say(scheduler, connecting(container, port))
        loop.add_reader(scheduler, answered.set)
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                await answered.wait()
            payload, descriptors = _answer(scheduler)
        except TimeoutError:
            raise Problem("scheduler_away", SILENT, 503) from None
        finally:
            loop.remove_reader(scheduler)
    if not descriptors:
        raise AWAY
    return socket.socket(fileno=descriptors[0]), payload


def _dial_now(home: Path, within: float) -> socket.socket:
    """Raises Problem."""
    scheduler = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    scheduler.settimeout(within)
    try:
        with socket_path(home) as path:
            scheduler.connect(path)
    except OSError:
        scheduler.close()
        raise AWAY from None
    return scheduler


async def dial(home: Path, container: UUID, program: Mapping[str, Any] | None = None) -> Line:
    """Asks the scheduler of this host. Raises Problem."""
    asked = asking(container, program)
    return await ask(await connect(home), asked)


async def ask(line: Line, asked: Frame) -> Line:
    """Asks the scheduler at the other end, and waits for its OPEN. Raises Problem."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            await line.send(*asked)
            _require_open(await line.read())
    except (TimeoutError, BadFrame):
        await line.close()
        raise Problem("scheduler_away", SILENT, 503) from None
    except Problem:
        await line.close()
        raise
    return line


def ask_now(connection: socket.socket, asked: Frame) -> bytes:
    """The same for threads that may wait: what OPEN says. What comes after it is not read."""
    payload, descriptors = _answer_now(connection, asked)
    for descriptor in descriptors:
        os.close(descriptor)
    return payload


def start_with_streams(home: Path, asked: Frame) -> tuple[socket.socket, list[int]]:
    """A program with `streams` on this host: the connection that ends it, and its streams (`Executed.take`). Blocking.
    Raises Problem."""
    scheduler = _dial_now(home, ANSWERS_WITHIN)
    _, descriptors = _answer_now(scheduler, asked)
    return scheduler, descriptors


def send_sockets(line: Line, descriptors: Sequence[int], payload: bytes) -> None:
    """Answers with OPEN and these. The line says nothing before. Raises OSError."""
    with line.duplicate() as own:
        frame = _HEAD.pack(FrameKind.OPEN, len(payload)) + payload
        socket.send_fds(own, [frame], descriptors)


def _answer_now(connection: socket.socket, asked: Frame) -> tuple[bytes, list[int]]:
    connection.settimeout(ANSWERS_WITHIN)
    _say(connection, asked)
    answer = _answer(connection)
    connection.settimeout(None)
    return answer


def _say(connection: socket.socket, asked: Frame) -> None:
    """If the other side has hung up, its answer tells."""
    kind, payload = asked
    with contextlib.suppress(OSError):
        connection.sendall(_HEAD.pack(kind, len(payload)) + payload)


def _answer(connection: socket.socket) -> tuple[bytes, list[int]]:
    """What OPEN says, and the descriptors that come with it. Closes the connection if it is refused. Raises Problem."""
    descriptors: list[int] = []
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, _HEAD.size, STREAMS, socket.MSG_CMSG_CLOEXEC)
        kind, length = _HEAD.unpack(head + _exactly(connection, _HEAD.size - len(head)))
        if length > PAYLOAD_LIMIT:
            raise BadFrame("of a wrong length")
        payload = _exactly(connection, length)
        _require_open(_checked(kind, payload))
    except (OSError, ValueError):  # TimeoutError is one, and BadFrame
        connection.close()
        raise Problem("scheduler_away", SILENT, 503) from None
    except Problem:
        connection.close()
        raise
    return payload, descriptors


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (piece := connection.recv(size - len(found))):
            raise ConnectionResetError
        found += piece
    return found


def _require_open(answer: Frame | None) -> None:
    match answer:
        case (FrameKind.OPEN, _):
            return
        case (FrameKind.REFUSED, payload):
            raise problem_of(payload)
        case _:
            raise Problem("scheduler_away", "The connection to the scheduler was lost; try again shortly.", 503)


def problem_of(payload: bytes) -> Problem:
    """The refusal that a frame of this payload carries. Raises BadFrame: another host's scheduler may be a stranger."""
    try:
        answer = json.loads(payload)
        error, status = answer["error"], int(answer["status"])
        problem = Problem(str(error["code"])[:64], str(error["message"])[:REFUSAL_LIMIT], status)
    except (ValueError, OverflowError, RecursionError, KeyError, TypeError):
        raise BadFrame("a refusal that cannot be read") from None
    if not 400 <= status < 600:
        raise BadFrame("a refusal of no such status")
    return problem
