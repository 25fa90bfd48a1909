"""Who is behind a WebSocket, and whether they still may be: a connection outlives sessions, tokens and accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser
from django.db import Error
from django.http import HttpRequest
from django.http.cookie import parse_cookie

from web.errors import Problem
from web.people import tokens
from web.texts import fault_of

if TYPE_CHECKING:
    from django.contrib.auth.models import User

LOOK_AGAIN = 10.0  # seconds; who may no longer stay does so for that long at the most


def person(scope: dict[str, Any], *, by_token: bool = False) -> User:
    """Whose session it is now, or, where tokens are taken, whose token that may write. Raises Problem if nobody's."""
    if by_token and (token := tokens.of_header(dict(scope["headers"]).get(b"authorization", b""))):
        tokens.require_write(token)
        return token.user
    user = _user_of(scope["session"].session_key)  # the scope's own user is as old as the connection
    if isinstance(user, AnonymousUser) or not user.is_active:
        raise Problem("not_authenticated", "Sign in, or send a token." if by_token else "Sign in.", 401)
    return user


def user_behind(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The key of the user whose token or session comes with these headers, if that is good for anything."""
    given = dict(headers)
    try:
        if token := tokens.of_header(given.get(b"authorization", b"")):
            return int(token.user.pk)
        cookies = parse_cookie(given.get(b"cookie", b"").decode("latin-1"))
        key = cookies.get(settings.SESSION_COOKIE_NAME, "")
        return None if fault_of(key) else _user_of(key).pk
    except Problem:
        return None


def _user_of(session_key: str) -> User | AnonymousUser:
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return get_user(request)  # none if they have signed out, or the password is another


async def watch(look: Callable[[dict[str, Any]], Any], scope: dict[str, Any]) -> None:
    """Looks again and again. Raises the Problem as soon as there is one."""
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        with suppress(Error):  # away for now: that takes nothing away from anybody
            await database_sync_to_async(look)(scope)
