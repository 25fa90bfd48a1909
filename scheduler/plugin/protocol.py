"""Docker's plugin protocol: JSON by HTTP/1.1 over a UNIX socket that only root may reach.

Every call is a POST whose path is the call's name; every answer has status 200, with "Err" for what went wrong. Docker
repeats a call of which the connection broke, for half a minute, so a scheduler that is restarted meanwhile is bridged.
Nobody but root is here, and yet everything has a bound.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import h11

from scheduler.parts import Background

log = logging.getLogger(__name__)

Call = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]  # its name and what it says → the answer

CHUNK = 16 << 10
LONGEST = 64 << 10  # bytes of a call: a hundred options and more
WITHIN = 10.0  # seconds for a call to arrive
KEPT = 120.0  # seconds that a connection may be silent
MOST = 1024  # connections: as many containers may start at once; the next wait in the backlog
MEDIA = "application/vnd.docker.plugins.v1.2+json"

WITHOUT_WORDS = ("VolumeDriver.List", "VolumeDriver.Capabilities")
# Docker asks again when a connection broke, but what it says it has sent already.
CUT_OFF = "gpushare: Docker says nothing with this call: the scheduler was restarted over this call. Try it again."


class TooLong(Exception):
    """What was sent is no call of Docker's."""


class PluginServer:
    def __init__(self, path: Path, call: Call) -> None:
        self._path, self._call = path, call
        self._places = asyncio.Semaphore(MOST)
        self._connections = Background()

    async def run(self) -> None:
        """Until cancelled. Raises OSError if the socket cannot be made."""
        with contextlib.closing(self._listen()) as listener:
            loop = asyncio.get_running_loop()
            try:
                while True:
                    await self._places.acquire()
                    sock, _ = await loop.sock_accept(listener)
                    task = asyncio.create_task(self._serve(sock))
                    self._connections.keep(task)
                    task.add_done_callback(lambda _: self._places.release())
            finally:
                for task in self._connections:
                    task.cancel()
                self._take_away()

    def _take_away(self) -> None:
        """Docker asks every socket that it finds who it is, and waits long for one that nobody listens at."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _listen(self) -> socket.socket:
        """Over the socket of a scheduler that was killed, if there is one."""
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        new = self._path.with_name(f".{self._path.name}.new")
        new.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.bind(str(new))
            new.chmod(0o600)
            listener.listen(MOST)
            os.rename(new, self._path)
            self._inode = self._path.stat().st_ino
        except OSError:
            listener.close()
            raise
        return listener

    async def _serve(self, sock: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=sock)
        except OSError:
            sock.close()
            return
        try:
            await self._answer_all(reader, writer)
        except (OSError, TimeoutError, h11.RemoteProtocolError, TooLong) as error:
            log.debug("a connection of Docker's ended: %s", error or type(error).__name__)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=CHUNK)
        while True:
            async with asyncio.timeout(KEPT):
                request = await _next(connection, reader)
            if not isinstance(request, h11.Request):
                return
            body = b""
            async with asyncio.timeout(WITHIN):
                while isinstance(event := await _next(connection, reader), h11.Data):
                    body += event.data
                    if len(body) > LONGEST:
                        raise TooLong(f"a call of more than {LONGEST} bytes")
            answer = json.dumps(await self._answer(request, body)).encode()
            headers = [("Content-Type", MEDIA), ("Content-Length", str(len(answer)))]
            for out in (h11.Response(status_code=200, headers=headers), h11.Data(answer), h11.EndOfMessage()):
                writer.write(connection.send(out) or b"")
            await writer.drain()
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()

    async def _answer(self, request: h11.Request, body: bytes) -> Mapping[str, Any]:
        name = request.target.decode(errors="replace").lstrip("/")
        try:
            said = json.loads(body or b"{}")
        except ValueError:
            said = None
        if not body and name.startswith("VolumeDriver.") and name not in WITHOUT_WORDS:
            return {"Err": CUT_OFF}
        if request.method != b"POST" or not isinstance(said, dict | None) or (body and said is None):
            return {"Err": "This is no call of Docker's plugin protocol: a POST with a JSON object."}
        return await self._call(name, said or {})


async def _next(connection: h11.Connection, reader: asyncio.StreamReader) -> Any:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(CHUNK))
    return event
