"""Who is behind a WebSocket, and whether they still may be: a connection outlives sessions, tokens and accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings
from django.contrib.auth import get_user
from django.db import Error
from django.http import HttpRequest

from web.errors import Problem
from web.people import tokens

if TYPE_CHECKING:
    from django.contrib.auth.models import User

LOOK_AGAIN = 10.0  # seconds; who may no longer stay does so for that long at the most


def person(scope: dict[str, Any], *, by_token: bool = False) -> User:
    """Whose session it is now, or, where tokens are taken, whose token that may write. Raises Problem if nobody's."""
    if by_token and (token := tokens.of_header(dict(scope["headers"]).get(b"authorization", b""))):
        tokens.require_write(token)
        return token.user
    # Read again: the scope's own session and user are as old as the connection.
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(scope["session"].session_key)
    user = get_user(request)  # none if they have signed out, or the password is another
    if not user.is_active:
        raise Problem("not_authenticated", "Sign in, or send a token." if by_token else "Sign in.", 401)
    return user


async def watch(look: Callable[[dict[str, Any]], Any], scope: dict[str, Any]) -> None:
    """Looks again and again. Raises the Problem as soon as there is one."""
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        with suppress(Error):  # away for now: that takes nothing away from anybody
            await database_sync_to_async(look)(scope)
