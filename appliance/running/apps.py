"""Applications in the browser, at https://NAME-PORT.… (GPUSHARE_APPS): the HTTP half of the door.

A proxy that speaks TLS passes all of these host names on to here. What is said is web/door/entering.py's; what passes,
appliance/heads.py's; the connection into the container is that of `gpushare open`, with the same waking.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import h11
from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings
from django.db import Error
from django.template.loader import render_to_string

from appliance.heads import CHUNK, Names, Near, OwnAnswer, Passing, Way, is_link, require_own, said
from appliance.running.doors import FULL, HEADER_SECONDS, Doors, Networks
from web.budgets import Places
from web.console.ports import reached
from web.door import entering
from web.door.entering import ENTER, Guest
from web.errors import Problem
from web.people import visitor
from web.people.tokens import digest

log = logging.getLogger(__name__)

COOKIE = "__Host-Http-gpushare"  # browsers that know this prefix let no script set one, others at least no other host
BROWSER = f"{COOKIE}-browser"  # which browser was sent to the dashboard
ATTRIBUTES = "Path=/; Secure; HttpOnly; SameSite=Lax"
LEAVE_WITHIN = 600  # seconds that somebody may take to sign in
IDLE_SECONDS = 75  # until a connection is closed that has asked before: longer than nginx keeps one
LONGEST_PATH = 2000  # characters that are kept during the sign-in
AWAY = OwnAnswer(503, "The database is busy, full or away. Try again shortly.")
places = Places(256, 2048)


class Visitor:
    """A guest, and their connections: all are ended as soon as the right is."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._looked = float("-inf")
        self._connections = set[asyncio.Task[Any]]()
        self._watching: asyncio.Task[None] | None = None
        self._problem: Problem | None = None

    @property
    def is_here(self) -> bool:
        """Whether they were looked at just now."""
        return time.monotonic() - self._looked < visitor.LOOK_AGAIN

    async def look(self) -> None:
        """If that is not just done. Raises Problem."""
        if self._problem:
            raise self._problem
        if not self.is_here:
            await database_sync_to_async(self._look)()

    def _look(self) -> None:
        self.guest.look()
        self._looked = time.monotonic()

    def comes(self, connection: asyncio.Task[Any]) -> None:
        self._connections.add(connection)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def goes(self, connection: asyncio.Task[Any]) -> None:
        self._connections.discard(connection)
        if not self._connections and self._watching:
            self._watching.cancel()

    async def _watch(self) -> None:
        try:
            await visitor.watch(self._look)
        except Problem as problem:
            self._problem = problem
            for each in self._connections:
                each.cancel()


class AppsDoor:
    """All connections of this process."""

    def __init__(self) -> None:
        self._doors = Doors(["0.0.0.0/0", "::/0"], descriptors=2)  # they come by the proxy, all of them
        self._proxies = Networks(settings.GPUSHARE_TRUSTED_PROXIES)
        self._visitors: dict[tuple[str, str], Visitor] = {}  # by cookie and host name

    async def open(self, listener: socket.socket) -> asyncio.Server:
        return await asyncio.start_server(self._serve, sock=listener, limit=CHUNK)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(self, reader, writer)
        if not self._doors.enter(connection.address, connection.address):
            writer.write(FULL)
            writer.close()
            return
        try:
            await connection.serve()
        except asyncio.CancelledError:
            writer.transport.abort()  # somebody's right has ended, or this process does
        except Exception:
            log.exception("a connection to an application")
            writer.transport.abort()
        finally:
            self._doors.leave(connection.address)

    @contextmanager
    def waits(self, connection: "_Connection", seconds: float) -> Iterator[None]:
        """While it asks nothing, it is closed after so long, and gives way to newer ones before."""
        self._doors.waits(connection)
        late = asyncio.get_running_loop().call_later(seconds, connection.abort)
        try:
            yield
        finally:
            late.cancel()
            self._doors.is_answered(connection)

    def where(self, headers: dict[str, str], peer: str) -> str:
        """From which address somebody asks, by what trusted proxies say."""
        hosts = [*(each.strip() for each in headers.get("x-forwarded-for", "").split(",") if each.strip()), peer]
        return next((host for host in reversed(hosts) if host not in self._proxies), hosts[0])

    async def visitor(self, cookie: str, host: str) -> Visitor | None:
        """Raises Problem."""
        key = digest(cookie), host
        if (known := self._visitors.get(key)) is None:
            for old in [each for each, one in self._visitors.items() if not one.is_here]:
                del self._visitors[old]
            guest = await database_sync_to_async(entering.guest)(cookie, host)
            if guest is None:
                return None
            known = self._visitors.setdefault(key, Visitor(guest))
        await known.look()
        return known


class _Connection:
    """One of a browser, or of a proxy for many browsers."""

    def __init__(self, door: AppsDoor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.address = str((writer.get_extra_info("peername") or ("",))[0])
        self._door, self._near, self._writer = door, Near(reader, writer), writer
        self._asked = False
        self._visitor: Visitor | None = None
        self._task = asyncio.current_task()

    async def serve(self) -> None:
        try:
            await Passing(self._near, self._route, _show, self._waits).serve()
        finally:
            self._leave()

    def abort(self) -> None:
        self._writer.transport.abort()

    def _leave(self) -> None:
        if self._visitor and self._task:
            self._visitor.goes(self._task)
        self._visitor = None

    @contextmanager
    def _waits(self) -> Iterator[None]:
        self._leave()  # what comes next may be somebody else's
        with self._door.waits(self, IDLE_SECONDS if self._asked else HEADER_SECONDS):
            yield
        self._asked = True

    async def _route(self, request: h11.Request) -> Way:
        """Raises OwnAnswer."""
        headers = said(request)
        name = _first_part(headers.get("host", "").lower())
        own = f"https://{name}.{settings.GPUSHARE_APPS}"
        names = Names(own, "")
        if headers.get("host", "").lower() == names.host.partition(":")[0]:  # the proxy has left the port out
            names.host = headers["host"].lower()
        require_own(request, names)
        url = urlsplit(request.target.decode("latin-1"))
        try:
            if url.path == ENTER:
                await self._enter(own, url.query, headers)
            found = await self._door.visitor(_cookie(request, COOKIE), own)
            if found is None:
                raise Problem("not_authenticated", "Sign in again.", 401)
        except Problem as problem:
            if problem.status == 401:
                _send_to_the_dashboard(request, headers, name)
            raise OwnAnswer(problem.status, problem.message) from None
        except Error:
            raise AWAY from None
        if self._task:
            self._visitor = found
            found.comes(self._task)
        guest = found.guest
        inner = Names(own, f"localhost:{guest.port}")
        return Way((guest.key, guest.port), inner, lambda: _dial(guest))

    async def _enter(self, own: str, query: str, headers: dict[str, str]) -> None:
        """Always raises OwnAnswer, or Problem."""
        given = {name: values[0] for name, values in parse_qs(query).items()}
        where = self._door.where(headers, self.address)
        key = await database_sync_to_async(entering.enter)(
            given.get("code", ""), _cookie_of(headers.get("cookie", ""), BROWSER), own, where
        )
        path = given.get("to", "/")
        raise OwnAnswer(303, "You are in.", [
            ("Location", own + path if path.startswith("/") and path.isascii() and path.isprintable() else own + "/"),
            ("Set-Cookie", f"{COOKIE}={key}; {ATTRIBUTES}"),
            ("Set-Cookie", f"{BROWSER}=; {ATTRIBUTES}; Max-Age=0"),
            ("Referrer-Policy", "no-referrer"),
        ])  # fmt: skip


def _first_part(host: str) -> str:
    """Of a host name below GPUSHARE_APPS. Raises OwnAnswer."""
    name, _, rest = host.partition(".")
    if not name.isascii() or rest not in (settings.GPUSHARE_APPS, settings.GPUSHARE_APPS.partition(":")[0]):
        raise OwnAnswer(421, f"Applications have names such as https://train-1a2b3c4d-8888.{settings.GPUSHARE_APPS}/.")
    return name


def _send_to_the_dashboard(request: h11.Request, headers: dict[str, str], name: str) -> None:
    """Raises OwnAnswer."""
    if request.method not in (b"GET", b"HEAD") or not is_link(headers):
        raise OwnAnswer(401, "Your session has ended. Reload the page to sign in again.")
    browser = _cookie(request, BROWSER) or secrets.token_urlsafe(32)  # the same for two pages at once
    path = request.target.decode("latin-1")
    asked = {"at": name, "browser": digest(browser), "to": path if len(path) <= LONGEST_PATH else "/"}
    raise OwnAnswer(303, "Sign in at the dashboard.", [
        ("Location", f"{settings.GPUSHARE_PUBLIC_URL}/apps/open/?{urlencode(asked)}"),
        ("Set-Cookie", f"{BROWSER}={browser}; {ATTRIBUTES}; Max-Age={LEAVE_WITHIN}"),
        ("Referrer-Policy", "no-referrer"),
    ])  # fmt: skip


def _cookie(request: h11.Request, name: str) -> str:
    """Empty if there is none."""
    sent = [value.decode("latin-1") for header, value in request.headers if header == b"cookie"]
    return _cookie_of(";".join(sent), name)


def _cookie_of(sent: str, name: str) -> str:
    for each in sent.split(";"):
        found, _, value = each.strip().partition("=")
        if found == name:
            return value
    return ""


async def _dial(guest: Guest) -> Near:
    """Raises OwnAnswer."""
    try:
        place = places.require(guest.user.pk, "connections to applications are open")
        try:
            connection, _ = await reached(guest.container, guest.port)
            return _Counted(*await asyncio.open_connection(sock=connection, limit=CHUNK), place.free)
        except BaseException:
            place.free()
            raise
    except Problem as problem:
        status = problem.status if problem.status in (429, 503) else 502
        raise OwnAnswer(status, problem.message) from None


class _Counted(Near):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, free: Callable[[], None]) -> None:
        super().__init__(reader, writer)
        self._free = free

    async def close(self) -> None:
        self._free()
        await super().close()


def _show(request: h11.Request | None, answer: OwnAnswer) -> tuple[str, bytes]:
    if request is None or not is_link(said(request)):
        return "text/plain; charset=utf-8", f"{answer.text}\n".encode()
    return "text/html; charset=utf-8", _page(answer.status, answer.text).encode()


def _page(status: int, text: str) -> str:
    title = HTTPStatus(status).phrase
    return render_to_string("application.html", {"title": title, "text": text, "url": settings.GPUSHARE_PUBLIC_URL})
