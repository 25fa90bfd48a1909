"""The WebSocket /ws/containers/ID/ports/PORT/: a TCP connection to a port in a container, a binary message some bytes.

PORT 0 is the only one that listens. The first message is the text {"port": PORT}; whoever may not, or where nothing
listens, gets a refusal and 4000 + its status as close code. The connection ends with either side.

The scheduler connects inside the container's network namespace and passes the descriptor, so the bytes do not pass its
loop. From another host they come over the relay.
"""

import asyncio
import json
import socket
import time
from contextlib import suppress
from typing import Any
from uuid import UUID
from weakref import WeakValueDictionary

from django.conf import settings
from django.contrib.auth.models import User

from web.budgets import Place, Places
from web.console.consumer import ConsoleConsumer, asked_for
from web.console.frames import AWAY, HIGHEST_PORT, PORT, WAKING, ask_now, connect_to_port, connecting
from web.errors import Problem, invalid
from web.models import Container
from web.people.roles import require_opening
from web.relay.reaching import Kind, found_elsewhere, reach

CHUNK = 64 << 10  # bytes of a message
LOOK_AGAIN = 0.25  # seconds until it is asked again whether a container's memory is back
LATER = 5.0  # seconds after which who finds no place among those that wait for it may come again
waiting = Places(64)  # connections for each container whose memory is away
AT_ONCE = 2  # connections to one container that the scheduler is asked for: its loop has decisions to make as well
_connecting = WeakValueDictionary[UUID, asyncio.Semaphore]()  # by container: one that takes none holds up no other's
NOTED_EVERY = 3600.0  # seconds between two audit entries about the same person and port
_noted: dict[tuple[int, UUID, int | str], float] = {}  # when, by this process's clock


class PortConsumer(ConsoleConsumer):
    kind = "port"
    places, what = Places(64, 512), "connections to containers are open"  # a browser keeps six for each application
    writer: asyncio.StreamWriter | None = None

    def admit(self, scope: dict[str, Any]) -> tuple[User, Container]:
        user, container = asked_for(scope)
        if self._port() > HIGHEST_PORT:
            raise invalid(f"A port is a number up to {HIGHEST_PORT}.", "port")
        require_opening(user, container, self._port())
        return user, container

    def _port(self) -> int:
        return int(self.scope["url_route"]["kwargs"]["port"])

    async def _open(self, program: dict[str, Any] | None = None) -> None:
        self.passing = asyncio.create_task(self._pass_on(self._carry))

    async def _carry(self) -> None:
        """Raises Problem."""
        connection, port = await reached(self.container, self._port())
        reader, self.writer = await asyncio.open_connection(sock=connection, limit=CHUNK)
        if noteworthy((self.user.pk, self.container.pk, port)):
            await self._record("port-opened", port=port)
        await self.send(text_data=json.dumps({"port": port}))
        await self._read(reader)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self.writer and bytes_data:
            with suppress(ConnectionError):  # the application has hung up: `_read` sees that
                self.writer.write(bytes_data)
                await self.writer.drain()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                await self.send(bytes_data=data)

    async def _end(self) -> None:
        if self.writer:
            self.writer.close()
            with suppress(OSError):
                await self.writer.wait_closed()


async def reached(container: Container, port: int) -> tuple[socket.socket, int]:
    """A connection to this port, and which it is. One to a container whose memory gave way is held silently until that
    is back: no answer would be one that all clients take. Raises Problem."""
    held: Place | None = None
    try:
        while True:
            try:
                return await _reached_now(container, port)
            except Problem as problem:
                if problem.code != WAKING:
                    raise
            held = held or waiting.take(container.pk)
            if held is None:
                raise Problem(WAKING, f"{waiting.each} connections wait for its memory already.", 503, wait=LATER)
            await asyncio.sleep(LOOK_AGAIN)
    finally:
        if held:
            held.free()


async def _reached_now(container: Container, port: int) -> tuple[socket.socket, int]:
    node = await found_elsewhere(container)
    if node is None:
        async with _connecting.setdefault(container.pk, asyncio.Semaphore(AT_ONCE)):
            connection, answer = await connect_to_port(settings.GPUSHARE_HOME, container.pk, port)
    else:
        connection = await reach(node, Kind.PORT)
        answer = await asyncio.to_thread(ask_now, connection, connecting(container.pk, port))
    if len(answer) != PORT.size:
        connection.close()
        raise AWAY
    return connection, PORT.unpack(answer)[0]


def noteworthy(whose: tuple[int, UUID, int | str]) -> bool:
    """Whether it goes into the audit log: a browser opens hundreds of connections to one application."""
    now = time.monotonic()
    for old in [key for key, at in _noted.items() if now - at > NOTED_EVERY]:
        del _noted[old]
    return _noted.setdefault(whose, now) == now
