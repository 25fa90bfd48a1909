"""The synchronous part of requests, nearly all of each: in one thread from the first middleware to the last.

Left alone, Django gives each request a new thread that connects to the database anew, and goes back and forth between
it and the event loop for the middleware, the check against forged requests and the view. Such a change of threads takes
longer than many requests have to do.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from appliance.static import Application, Receive, Send

KEPT = 16  # wait for the next requests, each with its connection; a burst makes more, and they end after it


class Handler(ASGIHandler):
    """Django's, with middleware and view called as under WSGI: one change of threads for all of them."""

    def load_middleware(self, is_async: bool = True) -> None:
        super().load_middleware(is_async=False)

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)


class Threads:
    """An ASGI application: all that `app` does synchronously for one request is done in one thread, which stays."""

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
