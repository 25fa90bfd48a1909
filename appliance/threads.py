"""Threads for the synchronous part of requests, nearly all of each: they stay, and keep their database connections.

Without this each request is given a new thread and connects to the database anew.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext
from django.db import connections

from appliance.static import Application, Receive, Send

KEPT = 16  # wait for the next requests, each with its connection; a burst makes more, and they end after it


class Threads:
    """An ASGI application: all that `app` does synchronously for one request is done in one thread."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._idle: list[ThreadPoolExecutor] = []

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        thread = self._idle.pop() if self._idle else ThreadPoolExecutor(1, thread_name_prefix="request")
        try:
            async with ThreadSensitiveContext(executor=thread):
                await self._app(scope, receive, send)
        finally:
            if len(self._idle) < KEPT:
                self._idle.append(thread)
            else:
                thread.submit(connections.close_all)
                thread.shutdown(wait=False)
