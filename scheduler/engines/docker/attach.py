"""A container's keyboard and screen: Docker's "attach", a connection that turns from HTTP into a plain stream.

The SDK's own attaching reads ahead and loses what it read, so the few lines of HTTP are spoken here.
"""

import asyncio
import json
import socket
import struct
from contextlib import suppress
from urllib.parse import urlsplit

from scheduler.engines.base import EngineError, Output
from scheduler.engines.docker.client import LOOK_WITHIN, Client

CHUNK = 32 << 10  # bytes, the most in one piece of output
HEAD_LIMIT = 8 << 10
# Docker looks out for keys that detach a terminal, and so holds some back. Nobody types these: no UTF-8 has the byte.
NO_DETACH_KEYS = ",".join(["%FF"] * 8)


def attach(client: Client, engine_id: str, *, interactive: bool, tty: bool) -> "Attached":
    """Blocking. Attached before a container starts, it gets all of its output. Raises EngineError or OSError."""
    query = f"stream=1&stdout=1&stderr=1&stdin={int(interactive)}&detachKeys={NO_DETACH_KEYS}"
    sock = upgraded(client, f"containers/{engine_id}/attach?{query}")
    return Attached(client, engine_id, sock, interactive=interactive, tty=tty)


def upgraded(client: Client, path: str, body: bytes = b"") -> socket.socket:
    """A POST that turns into a stream. Blocking. Raises EngineError or OSError."""
    sock = _connect(client.address)
    try:
        sock.sendall(
            f"POST /v{client.api.api_version}/{path} HTTP/1.1\r\n"
            "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        status = int(_head(sock).split(maxsplit=2)[1])
        if status != 101:
            raise _refusal(status, sock.recv(HEAD_LIMIT))
    except BaseException:
        sock.close()
        raise
    return sock


def attach_again(client: Client, engine_id: str) -> "Attached":
    """Blocking. To one that runs already, by what Docker knows of it."""
    found = client.look.inspect_container(engine_id)
    config = found["Config"]
    if not found["State"]["Running"]:
        raise EngineError("The container has ended.", code="container_ended")
    if not (config["OpenStdin"] or config["Tty"]):
        raise EngineError("It was launched without input.", code="no_console")
    return attach(client, engine_id, interactive=config["OpenStdin"], tty=config["Tty"])


class Attached:
    """What `Engine.attach` gives. A terminal has one output; else there are two, and Docker frames them."""

    def __init__(self, client: Client, engine_id: str, sock: socket.socket, *, interactive: bool, tty: bool) -> None:
        self._client, self._engine_id, self._socket = client, engine_id, sock
        self._interactive, self._tty = interactive, tty
        self._writer: asyncio.StreamWriter | None = None
        self._which, self._left = Output.OUT, 0  # of Docker's frame that is being read

    async def open(self) -> "Attached":
        """To be called first, but for `take`. Without it the output is discarded."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        return self

    def take(self) -> list[int]:
        self._socket.settimeout(None)
        return [self._socket.detach()]

    async def read(self) -> tuple[Output, bytes]:
        try:
            if self._tty:
                return Output.OUT, await self._reader.read(CHUNK)
            while not self._left:
                which, self._left = struct.unpack("!BxxxI", await self._reader.readexactly(8))
                self._which = Output(which)
            data = await self._reader.read(min(CHUNK, self._left))
        except (asyncio.IncompleteReadError, ConnectionError):
            data = b""
        self._left -= len(data)
        return self._which, data

    async def write(self, data: bytes) -> None:
        if self._interactive and self._writer:
            with suppress(ConnectionError):  # it has ended: reading tells
                self._writer.write(data)
                await self._writer.drain()

    def end_input(self) -> None:
        # Docker would take the end of a terminal's input for our leaving it.
        if self._interactive and self._writer and not self._tty:
            with suppress(OSError):
                self._writer.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        if self._tty:
            await self._client.unless_gone(self._client.api.resize, self._engine_id, rows, columns, inside=True)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()  # keys that nobody reads would hold a closing up
            with suppress(OSError):
                await self._writer.wait_closed()

    def discard(self) -> None:
        self._socket.close()


def _connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    match parts.scheme:
        case "unix" | "http+unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(LOOK_WITHIN)
            try:
                sock.connect(f"{parts.netloc}{parts.path}")
            except OSError:
                sock.close()
                raise
            return sock
        case "tcp" | "http":
            return socket.create_connection((parts.hostname or "localhost", parts.port or 2375), LOOK_WITHIN)
    raise EngineError(f"A terminal needs Docker on a UNIX socket or plain TCP, not {parts.scheme}.", status=400)


def _head(sock: socket.socket) -> bytes:
    """The answer up to its empty line, byte by byte: what follows belongs to the container."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte or len(head) > HEAD_LIMIT:
            raise ConnectionResetError("Docker hung up")
        head += byte
    return head


def _refusal(status: int, body: bytes) -> EngineError:
    try:
        said = str(json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["message"])
    except (ValueError, KeyError):
        said = f"status {status}"
    if status in (404, 409):
        return EngineError("The container has ended.", code="container_ended")
    return EngineError(f"Docker says: {said}", status=503 if status >= 500 else 409)


class Unasked(dict[str, Attached]):
    """Attached since before their container started, by its id, and not asked for yet."""

    def let_go(self, engine_id: str) -> None:
        if (attached := self.pop(engine_id, None)) is not None:
            attached.discard()
