"""Who is behind a connection that lasts, and whether they still may be: it outlives sessions, tokens and accounts."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AnonymousUser, User
from django.db import Error
from django.http import HttpRequest
from django.http.cookie import parse_cookie

from web.errors import Problem
from web.people import tokens
from web.texts import fault_of

LOOK_AGAIN = 5.0  # seconds; who may no longer stay does so for that long at the most


def person(scope: dict[str, Any], *, by_token: bool = False) -> User:
    """Whose session it is now, or, where tokens are taken, whose token that may write. Raises Problem if nobody's."""
    if by_token and (token := tokens.of_header(dict(scope["headers"]).get(b"authorization", b""))):
        tokens.require_write(token)
        return token.user
    user = user_of_session(scope["session"].session_key)  # the scope's own user is as old as the connection
    if user is None:
        raise Problem("not_authenticated", "Sign in, or send a token." if by_token else "Sign in.", 401)
    return user


def user_behind(authorization: bytes, cookie: bytes) -> User | None:
    """Whose token or session these headers of a request bring, if they are good for anything now."""
    try:
        if token := tokens.of_header(authorization):
            return token.user
    except Problem:
        return None
    key = parse_cookie(cookie.decode("latin-1")).get(settings.SESSION_COOKIE_NAME, "")
    return None if fault_of(key) else user_of_session(key)


def user_of_session(key: str) -> User | None:
    """Whose session at the dashboard this is, if it is still good for anything."""
    user = _user_of(key)
    return None if isinstance(user, AnonymousUser) or not user.is_active else user


def again(request: HttpRequest, require: Callable[[User], Any]) -> Callable[[], None]:
    """What looks whether the same person still may, long after the request: raises Problem if not."""
    headers = "HTTP_AUTHORIZATION", "HTTP_COOKIE"
    authorization, cookie = (str(request.META.get(name, "")).encode("latin-1", "replace") for name in headers)
    first = request.user.pk

    def look() -> None:
        user = user_behind(authorization, cookie)
        if user is None or user.pk != first:
            raise Problem("not_authenticated", "Sign in again.", 401)
        require(user)

    return look


def _user_of(session_key: str) -> User | AnonymousUser:
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return get_user(request)  # none if they have signed out, or the password is another


async def watch(look: Callable[..., Any], *about: Any) -> None:
    """Looks again and again. Raises the Problem as soon as there is one."""
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        with suppress(Error):  # away for now: that takes nothing away from anybody
            await database_sync_to_async(look)(*about)
