"""What stands between the server and Django: a request comes in whole, in time and within its budgets, or not at all.

Django writes whatever a body is to disk before it looks at anything. Here a body is read into memory first, up to what
its sender may send: little, until a signed-in user stands behind it. A request that is refused is answered with a
sentence, JSON for REST and a page for browsers, and its connection is closed.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings
from django.db import DatabaseError
from django.template.loader import render_to_string

from web.budgets import Place, Places, address_key, budget, spend, too_many
from web.errors import Problem
from web.http.security import POLICY
from web.people import visitor
from web.sizes import format_size

log = logging.getLogger(__name__)

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

ANONYMOUS_BODY_BYTES = 32 << 10  # a name and a password; all connections together are then 64 MiB
BODY_SECONDS = 60  # for one body: 3 MiB in this time are 50 kB a second
STILL_READ = 2.0  # seconds; a client that still sends would lose the answer if the connection were closed at once

_of_all = Places("requests_at_once_in_all")
_of_strangers = Places("requests_at_once_of_an_address")
_of_users = Places(32)  # each has a thread, and a launch waits in it for up to five seconds
_large_bodies = Places(4, 16)  # 48 MiB of memory together at most, and ten times that while all are read as JSON


class Opened:
    """A request under way. It is an address's until it is known whose it is."""

    def __init__(self, address: str) -> None:
        room, place = _of_all.take("everybody"), _of_strangers.take(address_key(address))
        if room is None or place is None:
            raise too_many("Too many requests are under way, from your address or in all. Try again in a moment.", 1)
        self._room, self._place = room, place

    def belongs_to(self, user: int) -> None:
        """Raises Problem if this user has enough of them under way."""
        place = _of_users.take(user)
        if place is None:
            raise too_many(f"You have {_of_users.each} requests under way already. Try again in a moment.", 1)
        self._place.free()
        self._place = place

    def end(self) -> None:
        """Also for a stream that has begun: those have budgets of their own."""
        self._place.free()
        self._room.free()


def count(scope: Mapping[str, Any], user: int | None, address: str) -> None:
    """A request more of this user, or while nobody knows whose it is of this address. Raises Problem if they are too
    many."""
    opened = scope.get("gpushare.opened")
    if user is not None and opened is not None:
        opened.belongs_to(user)
    if not spend("requests_a_second", f"address:{address}" if user is None else f"user:{user}", 1):
        raise too_many(f"More than {budget('requests_a_second')} requests a second. Try again in a second.", 1)


class Gate:
    """An ASGI application around `app`, for HTTP."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            try:
                body = await _body(scope, receive, held)
                if body is None:
                    return  # they have hung up
                scope["headers"] = _with_length(scope["headers"], len(body))
                opened = scope["gpushare.opened"] = Opened(str((scope.get("client") or ("",))[0]))
            except Problem as problem:
                held.close()
                await refuse(scope, receive, send, problem)
                return
            held.callback(opened.end)
            await self._app(scope, _replayed(body, receive), send)


async def _body(scope: dict[str, Any], receive: Receive, held: ExitStack) -> bytes | None:
    """All of it. None if it was never finished. Raises Problem.

    `held` gives the place of a large one back: it lies in memory until it is answered, and takes more once it is read.
    """
    headers = dict(scope["headers"])
    declared = int(headers.get(b"content-length", b"0"))  # a number: the server has judged it
    if not declared and b"transfer-encoding" not in headers:
        return b""
    large = False
    body = bytearray()
    size, more = declared, True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                if size > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
                    raise _too_large(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
                if not large and size > ANONYMOUS_BODY_BYTES:
                    held.callback((await _large_place(scope)).free)
                    large = True
                if not more:
                    return bytes(body)
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                body += message.get("body", b"")
                size, more = max(declared, len(body)), message.get("more_body", False)
    except TimeoutError:
        late = f"The request did not arrive within {BODY_SECONDS} seconds. Send it again."
        raise Problem("too_slow", late, 408) from None


def _with_length(headers: Iterable[tuple[bytes, bytes]], size: int) -> list[tuple[bytes, bytes]]:
    """The headers with the body's true length in bytes: Django and REST take a body without one as empty."""
    kept = [each for each in headers if each[0] not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", b"%d" % size)] if size else kept


async def _large_place(scope: dict[str, Any]) -> Place:
    """For a body that only a signed-in user may send. Raises Problem."""
    try:
        headers = dict(scope["headers"])
        given = headers.get(b"authorization", b""), headers.get(b"cookie", b"")
        user = await database_sync_to_async(visitor.user_behind)(*given)
    except DatabaseError:
        raise Problem("database_away", "The database is busy, full or away. Try again shortly.", 503) from None
    if user is None:
        raise _too_large(ANONYMOUS_BODY_BYTES, " unless you sign in first")
    return _large_bodies.require(user.pk, "large requests are under way")


def _too_large(allowed: int, unless: str = "") -> Problem:
    return Problem("too_large", f"The body of a request may have {format_size(allowed)} at most{unless}.", 413)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one message; from then on what really comes, which is the end of the connection."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Mapping[str, Any]:
        if left:
            return left.pop()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":  # and not the empty end of a body that nobody asked for
                return message

    return replay


async def refuse(scope: dict[str, Any], receive: Receive, send: Send, problem: Problem) -> None:
    """Answers, reads on for a moment so that the answer arrives, and closes the connection."""
    log.warning("refused with %s: %s", problem.status, problem.code)
    kind, content = rendered(scope["path"], problem)
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % len(content)),
        (b"content-security-policy", POLICY.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"connection", b"close"),
    ]
    if problem.retry_after:
        headers.append((b"retry-after", problem.retry_after.encode()))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(STILL_READ):
            message: Mapping[str, Any] = {"type": "http.request", "more_body": problem.status in (408, 413)}
            while message["type"] == "http.request" and message.get("more_body"):
                message = await receive()
    await send({"type": "http.response.body", "body": b""})


def rendered(path: str, problem: Problem) -> tuple[str, bytes]:
    """The kind and the content of an answer: what REST's clients read, or a page."""
    if path.startswith("/api/"):
        return "application/json", json.dumps(problem.as_dict()).encode()
    return "text/html; charset=utf-8", _page(problem.message).encode()


@cache
def _page(message: str) -> str:
    """Made once: there are a handful of refusals, and strangers can cause many."""
    return render_to_string("refused.html", {"message": message})
