"""The synchronous part of requests, nearly all of each: in one thread from the first middleware to the last.

Left alone, Django gives each request a new thread that connects to the database anew, and goes back and forth between
it and the event loop for the middleware, the check against forged requests and the view. Such a change of threads takes
longer than many requests have to do.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from typing import IO, Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.signals import request_started
from django.db import connections
from django.urls import set_script_prefix

from web.http.gate import Application, Receive, Send

LOOKING = 4  # at once: as many as one interpreter needs to be busy while some wait for the database
PATIENCE = 0.25  # seconds that one more waits for its turn; then it has waited for something slow, and begins beside it
KEPT = 16  # wait for the next requests, each with its connection; a burst makes more, and they end after it


class Handler(ASGIHandler):
    """Django's, with all that is done for a request but to read and to send it called at one go, as under WSGI.

    Requests that only look take turns: 32 threads at once, each of which goes on after each answer of the database when
    the others let it, need twice the processor time for the same answers. Others wait for the scheduler, not for that.
    """

    chunk_size = 1 << 20  # bytes that are sent at once: what does not stream is in memory, whole

    def __init__(self) -> None:
        super().__init__()
        self._looking = asyncio.Semaphore(LOOKING)

    def load_middleware(self, is_async: bool = True) -> None:
        super().load_middleware(is_async=False)

    async def handle(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        async with self._turn() if scope["method"] in ("GET", "HEAD") else nullcontext():
            response = await sync_to_async(self._respond)(scope, body)
        if response.streaming:
            await self._stream(response, receive, send)
        else:
            await self.send_response(response, send)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._looking.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            self._looking.release()

    def _respond(self, scope: dict[str, Any], body: IO[bytes]) -> Any:
        """The answer to a request. It is finished, unless it streams."""
        set_script_prefix(get_script_prefix(scope))
        request_started.send(sender=type(self), scope=scope)
        with body:
            request, refusal = self.create_request(scope, body)
            response: Any = self.get_response(request) if request else refusal
        response._handler_class = type(self)  # whom `close` names as the sender of its signal
        if not response.streaming:
            response.close()
        return response

    async def _stream(self, response: Any, receive: Receive, send: Send) -> None:
        """Until all is sent, or the client has gone."""
        sending = asyncio.create_task(self.send_response(response, send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            sent, _ = await asyncio.gather(sending, leaving, return_exceptions=True)
            await sync_to_async(response.close)()
        if isinstance(sent, Exception):
            raise sent


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
