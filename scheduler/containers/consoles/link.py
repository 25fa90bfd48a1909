"""The link to the web side of another host (web/relay/): dialled, kept, and dialled again. In the relay's thread."""

import asyncio
import json
import logging
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import asyncssh
from asyncssh.forward import SSHForwarder
from django.conf import settings
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Origin

from scheduler import clock
from scheduler.pace import Pace
from web.audit import seals
from web.relay.carrying import CHUNK, SSH, WINDOW, Held, key_of_web, until_one_ends
from web.relay.reaching import LINK, Kind

log = logging.getLogger(__name__)

BYTES_A_SECOND = 32 << 20  # each way, all streams together: more would take the scheduler's own time
AGAIN, SAID, LATEST = 1.0, 4.0, 16.0  # seconds until the web side is dialled again; twice as many each time
GATHERED = 0.002  # seconds after a message that was not full: the web side takes 1,000 a second

Open = Callable[[Kind], tuple[socket.socket, Callable[[], None]]]
"""What a new stream leads to, and what is called when it has ended. Raises OSError."""


class Link:
    """`public`: the key by which the web side knows whom it has."""

    def __init__(self, open_: Open) -> None:
        self._open = open_
        self._key = asyncssh.generate_private_key("ssh-ed25519")
        self.public = self._key.export_public_key().decode().strip()
        own = settings.GPUSHARE_AUDIT_KEY
        self._web = key_of_web(bytes.fromhex(own) if own else seals.key_of(settings.GPUSHARE_NODE))
        self._noted: str | None = None

    async def keep(self) -> None:
        """For ever."""
        pause = AGAIN
        while True:
            begun = clock.monotonic()
            try:
                await self._dial()
                why: object = "it has hung up"
            except (OSError, ValueError, ImportError, asyncssh.Error, WebSocketException) as error:  # no SOCKS here
                why = error or type(error).__name__
            if clock.monotonic() - begun > LATEST:
                pause = AGAIN
            self._note(" ".join(str(why).split()))
            if pause == SAID:
                log.warning("no link to the web side at %s: %s", settings.GPUSHARE_WEB, why)
            await asyncio.sleep(random.uniform(0.5, 1) * pause)
            pause = min(2 * pause, LATEST)

    def _note(self, why: str) -> None:
        """In a file, for `gpushare doctor`: since when it is linked, or is not, and why not."""
        if why == self._noted:
            return
        if self._noted is None or bool(why) != bool(self._noted):
            self._since = f"{clock.now():%Y-%m-%d %H:%M} UTC"
        self._noted = why
        path = settings.GPUSHARE_HOME / LINK
        with suppress(OSError):
            path.with_suffix(".new").write_text(json.dumps([self._since, why]))
            path.with_suffix(".new").replace(path)

    async def _dial(self) -> None:
        """Until either side ends it. Raises OSError, ValueError, asyncssh.Error, WebSocketException."""
        address = f"{settings.GPUSHARE_WEB.replace('http', 'ws', 1)}/ws/nodes/{quote(settings.GPUSHARE_NODE, safe='')}/"
        async with connect(
            address,
            origin=Origin(settings.GPUSHARE_WEB),
            compression=None,
            max_size=CHUNK,
            max_queue=4,
            close_timeout=1,
        ) as web:
            near, far = socket.socketpair()
            reader, writer = await asyncio.open_unix_connection(sock=near, limit=CHUNK)
            try:
                await until_one_ends(_take(web, writer), _give(reader, web), self._serve(far))
            finally:
                writer.close()
                far.close()

    async def _serve(self, connection: socket.socket) -> None:
        """Raises OSError, asyncssh.Error."""
        known = asyncssh.import_authorized_keys(self._web.export_public_key().decode())
        async with asyncssh.run_server(
            connection, **SSH, server_factory=lambda: _Web(self._open), server_host_keys=[self._key],
            authorized_client_keys=known, encoding=None, gss_host=None, gss_auth=False, password_auth=False,
            kbdint_auth=False, host_based_auth=False, agent_forwarding=False,
        ) as ssh:  # fmt: skip
            self._note("")
            log.info("linked to the web side at %s", settings.GPUSHARE_WEB)
            await ssh.wait_closed()


class _Web(asyncssh.SSHServer):
    """The web side. It may open streams, and nothing else."""

    _connection: asyncssh.SSHServerConnection
    _gone = False

    def __init__(self, open_: Open) -> None:
        self._open = open_

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True

    def unix_connection_requested(self, dest_path: str) -> Any:
        return self._connection.create_unix_channel(window=WINDOW), self._stream(dest_path)

    async def _stream(self, kind: str) -> SSHForwarder:
        """Raises ChannelOpenError."""
        try:
            connection, free = self._open(Kind(kind))
        except (OSError, ValueError) as error:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from None
        try:
            _, inner = await asyncio.get_running_loop().create_unix_connection(lambda: Held(free), sock=connection)
        except BaseException:
            connection.close()
            free()
            raise
        if self._gone:  # asyncssh drops what comes too late
            inner.close()
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "the link has ended")
        return SSHForwarder(inner)


async def _take(web: ClientConnection, writer: asyncio.StreamWriter) -> None:
    pace = Pace(BYTES_A_SECOND, clock.monotonic())
    try:
        while isinstance(data := await web.recv(), bytes):
            await _wait(pace, len(data))
            writer.write(data)
            await writer.drain()
    except ConnectionClosed:
        pass


async def _give(reader: asyncio.StreamReader, web: ClientConnection) -> None:
    pace = Pace(BYTES_A_SECOND, clock.monotonic())
    while data := await reader.read(CHUNK):
        await _wait(pace, len(data))
        await web.send(data)
        if len(data) < CHUNK:
            await asyncio.sleep(GATHERED)


async def _wait(pace: Pace, size: int) -> None:
    while pause := pace.take(clock.monotonic(), size):  # noqa: ASYNC110 (there is no event)
        await asyncio.sleep(pause)
