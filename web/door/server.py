"""The listener, and who is let in: by public key or certificate, so many at once, those who say nothing for a short
while."""

import asyncio
import base64
import logging
import re
import socket
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar, cast

import asyncssh
from asyncssh.forward import SSHForwarder
from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.conf import settings

from web.budgets import Places
from web.console.ports import noteworthy, reached
from web.door.programs import Program
from web.door.sockets import Socket
from web.door.visit import Visit, admitted, admitted_by_certificate
from web.errors import Problem
from web.people import ssh_keys, visitor
from web.relay.carrying import Held

T = TypeVar("T")

log = logging.getLogger(__name__)

SIGN_IN_SECONDS = 20
STRANGERS = 64  # connections that nobody has signed in on; the longest waiting gives way
ALIVE = 30  # seconds between two questions to a client that says nothing; the third without an answer ends it
KEYS = 20  # that one connection may try
PRINCIPAL = re.compile(r"[\w@.+-]+")  # no pattern, and nothing that ends the option it stands in
INSIDE = ("localhost", "127.0.0.1", "::1")
GONE = asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "the connection has ended")
ports = Places(64, 512)
people = Places(32, 256)


class Guest(asyncssh.SSHServer):
    """One connection."""

    strangers: "dict[Guest, None]" = {}  # the longest waiting first
    _connection: asyncssh.SSHServerConnection
    _tried = 0
    _gone = False

    def __init__(self) -> None:
        self._visit: Visit | None = None
        self._certified: dict[str, Visit] = {}  # by the number of whoever may come in by a certificate
        self._opening = set[asyncio.Task[Any]]()  # forwarded ports and sockets that are not reached yet
        self._watching: asyncio.Task[None] | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._address = str((conn.get_extra_info("peername") or ("",))[0])
        if len(self.strangers) >= STRANGERS:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest._connection.abort()
        self.strangers[self] = None

    async def begin_auth(self, username: str) -> bool:
        """Names those whose certificates are good for this container; asyncssh looks at the certificate itself."""
        self._certified = {}
        if settings.GPUSHARE_SSH_CA:
            visits = await database_sync_to_async(admitted_by_certificate)(username, self._address)
            self._certified = {str(visit.user.pk): visit for visit in visits}
            if lines := "\n".join(_authorities(visits)):
                self._connection.set_authorized_keys(asyncssh.import_authorized_keys(lines))
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Asked before the signature is looked at: nothing is known of whoever asks until `auth_completed`."""
        self._tried += 1
        if self._tried > 2 * KEYS:  # each is asked about once, and once more with its signature
            self._connection.abort()
            return False
        fingerprint = key.get_fingerprint()
        self._visit = await database_sync_to_async(admitted)(fingerprint, username, self._address)
        return self._visit is not None

    def auth_completed(self) -> None:
        self.strangers.pop(self, None)
        if person := cast("list[str]", self._connection.get_key_option("person")):  # the option is a certificate's
            self._visit = self._certified[person[0]]
            (self._visit.authority,) = cast("list[str]", self._connection.get_key_option("authority"))
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """While they are there; ends the connection as soon as they may no longer be."""
        visit = self._visit
        assert visit is not None
        try:
            place = people.require(visit.user.pk, "connections by ssh are open")
        except Problem as problem:
            self._end(problem)
            return
        await database_sync_to_async(visit.begin)()
        try:
            await visitor.watch(visit.look)
        except Problem as problem:
            self._end(problem)
        finally:
            place.free()
            await asyncio.shield(asyncio.create_task(database_sync_to_async(visit.end)()))

    def _end(self, problem: Problem) -> None:
        self._connection.disconnect(asyncssh.DISC_BY_APPLICATION, f"gpushare: {problem.message}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.strangers.pop(self, None)
        self._gone = True
        for task in (*self._opening, *([self._watching] if self._watching else [])):
            task.cancel()

    def session_requested(self) -> Program | bool:
        return Program(self._visit) if self._visit else False

    async def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> asyncssh.SSHTCPSession[bytes]:
        """-L and -D. Raises ChannelOpenError."""
        visit = self._visit
        assert visit is not None
        if dest_host not in (*INSIDE, visit.container.name) or not 0 < dest_port <= 65535:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "only ports of the container itself: 127.0.0.1"
            )
        try:
            place = ports.require(visit.user.pk, "connections to containers are open")
            try:
                connection, port = await self._open(reached(visit.container, dest_port))
            except BaseException:
                place.free()
                raise
        except Problem as problem:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, problem.message) from None
        await _note(visit, "port-opened", port=port)
        _, inner = await asyncio.get_running_loop().create_connection(lambda: Held(place.free), sock=connection)
        if self._gone:  # asyncssh drops what comes too late
            inner.close()
            raise GONE
        return cast("asyncssh.SSHTCPSession[bytes]", SSHForwarder(inner))

    async def _open(self, work: Coroutine[Any, Any, T]) -> T:
        """Cancelled if the connection ends meanwhile. Raises ChannelOpenError then."""
        self._opening.add(opening := asyncio.create_task(work))
        opening.add_done_callback(self._opening.discard)
        try:
            return await opening
        except asyncio.CancelledError:
            raise GONE from None

    async def unix_connection_requested(self, dest_path: str) -> Socket:
        """-L to a path. Raises ChannelOpenError."""
        visit = self._visit
        assert visit is not None
        found = Socket(visit)
        await self._open(found.reach(dest_path))
        try:
            await _note(visit, "socket-opened", path=dest_path)
            if self._gone:
                raise GONE
        except BaseException:
            found.connection_lost(None)
            raise
        return found


async def _note(visit: Visit, action: str, **what: Any) -> None:
    if noteworthy((visit.user.pk, visit.container.pk, *what.values())):
        await database_sync_to_async(visit.record)(action, **what)


def _authorities(visits: list[Visit]) -> Iterator[str]:
    """As in a file authorized_keys: who has signed certificates for whom. `person` and `authority` are ours."""
    for visit in visits:
        name = visit.user.get_username()
        if not PRINCIPAL.fullmatch(name):
            continue
        for key in settings.GPUSHARE_SSH_CA:
            signed_by = ssh_keys.fingerprint_of(base64.b64decode(key.split()[1]))
            yield f'cert-authority,principals="{name}",person="{visit.user.pk}",authority="{signed_by}" {key}'


async def open_door(listener: socket.socket) -> asyncssh.SSHAcceptor:
    """Lets people in until it is closed."""
    pem = ssh_keys.host_key().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return await asyncssh.listen(
        sock=listener,
        config=None,
        server_factory=Guest,
        server_host_keys=[asyncssh.import_private_key(pem)],
        encoding=None,
        line_editor=False,
        login_timeout=SIGN_IN_SECONDS,
        keepalive_interval=ALIVE,
        password_auth=False,
        kbdint_auth=False,
        host_based_auth=False,
        gss_host=None,
        gss_kex=False,
        gss_auth=False,
        agent_forwarding=False,
        x11_forwarding=False,
        compression_algs=["none"],
        server_version="gpushare",
    )
