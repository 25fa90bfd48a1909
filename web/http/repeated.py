"""An answer given again as it was: to the same question in the same words, while nobody has written to the database.

Until something changes, whoever asks again finds what they found before. To find it takes a thread that looks up the
token, its user and their rights, and three times as long as to send it. So the event loop sends it itself, as often as
it is asked for; of those who ask the same after a change, one goes the whole way and the others wait for it.

A view says which of its answers follow from the request and the database alone (`may_repeat`). Requests are counted as
all others are. PostgreSQL does not tell whether anybody has written (web/kept.py): there nothing is repeated.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections
from django.http import HttpRequest
from django.utils import timezone

from web.errors import Problem
from web.http.gate import Application, Receive, Send, count
from web.kept import ENTRIES, LARGEST, Recent, Version, may_be_asked
from web.models import Token

LONGEST = timedelta(minutes=1)  # after which a token has to be noted as used, which is a thread's work

_MARK = "gpushare.may_repeat"  # in a request's scope: the token that it came with

Question = tuple[object, ...]


def may_repeat(request: HttpRequest, token: Token) -> None:
    """Says that the answer to this request, which came with this token, follows from it and the database alone."""
    getattr(request, "scope", {})[_MARK] = token


@dataclass(frozen=True, slots=True)
class Answer:
    messages: tuple[Mapping[str, Any], ...]
    user: int
    until: datetime


@dataclass(frozen=True, slots=True)
class Given:
    """An answer, or one that is being made, to a question that came at this version of the database. None: for once."""

    version: int
    answer: asyncio.Future[Answer | None]


class Repeated:
    """An ASGI application around `app`, for HTTP, within the Gate."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._given: Recent[Question, Given] = Recent(ENTRIES)  # only what may be repeated: strangers fill nothing
        self._database: Version | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        version = self._version() if scope["method"] == "GET" else None
        if version is None:
            await self._app(scope, receive, send)
            return
        question = (scope["scheme"], scope["path"], scope["query_string"], tuple(scope["headers"]))
        given = self._given.get(question)
        if given is not None and given.version == version:
            answer = await asyncio.shield(given.answer)
            if answer is not None and _is_good(answer, scope):
                for message in answer.messages:
                    await send(message)
                return
        mine = Given(version, asyncio.get_running_loop().create_future())
        if given is not None:
            self._given.put(question, mine)
        try:
            await self._app(scope, receive, _noting(mine.answer, scope, send))
        finally:
            if not mine.answer.done():
                mine.answer.set_result(None)
            if mine.answer.result() is not None:
                self._given.put(question, mine)

    def _version(self) -> int | None:
        """None if it cannot be told just now. Asked anew for each request: nobody is shown what was before."""
        try:
            if self._database is None:
                connection = connections[DEFAULT_DB_ALIAS]
                if not may_be_asked(connection):
                    return None
                self._database = Version(str(connection.settings_dict["NAME"]))
            return self._database.ask()
        except sqlite3.Error:
            return None


def _is_good(answer: Answer, scope: Mapping[str, Any]) -> bool:
    """Whether it is for now, and for somebody who may still ask. If not, `app` says why."""
    if timezone.now() >= answer.until:
        return False
    try:
        count(scope, answer.user, "")
    except Problem:
        return False
    return True


def _noting(found: asyncio.Future[Answer | None], scope: Mapping[str, Any], send: Send) -> Send:
    """`send`, which also keeps the answer if it may be repeated: before it is sent, as its first reader may be slow."""
    messages: list[Mapping[str, Any]] = []

    async def note(message: Mapping[str, Any]) -> None:
        token = scope.get(_MARK)
        if token is not None and len(messages) < 2:
            messages.append(message)
            if len(messages) == 2:
                found.set_result(_answer(messages, token))
        await send(message)

    return note


def _answer(messages: list[Mapping[str, Any]], token: Token) -> Answer | None:
    """None if there is more of it, or it is too large to keep, or a refusal."""
    start, body = messages
    if start["status"] != 200 or body.get("more_body") or len(body["body"]) > LARGEST:
        return None
    until = timezone.now() + LONGEST
    return Answer(tuple(messages), token.user_id, min(until, token.expires_at or until))
