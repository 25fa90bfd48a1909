"""The appliance in one process: the ASGI server and the scheduler worker on one event loop.

They share the loop because Channels' in-memory layer does not reach across loops. Either of them ending ends both:
a dashboard without a scheduler would show old figures as new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command

from scheduler.worker import CANNOT_START, DatabaseAway, Scheduler, database_in_words
from web.people.bootstrap import ensure_admin


class _Server(uvicorn.Server):
    """uvicorn, less its own signal handlers: one place ends the whole process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True, slots=True)
class Address:
    """Where the appliance answers, and the token of its first administrator."""

    host: str
    port: int
    token: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def listen(host: str, port: int) -> socket.socket:
    """Binds before anything else starts, so that a taken port costs nothing. Port 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. asyncio would not set it on them, and then every answer waits 40 ms for a delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CommandError(
            f"Cannot listen on {host}:{port} ({error.strerror}). Is the appliance running already? "
            f"Choose another port: PORT=8001 make up"
        ) from error
    return listener


def _prepare() -> str:
    """The database as this release needs it, and the first administrator's token."""
    try:
        with database_in_words():
            call_command("migrate", verbosity=0, interactive=False)
            return ensure_admin()
    except DatabaseAway as error:
        raise CommandError(str(error)) from None


class Appliance:
    """`async with Appliance(host, port) as address` runs both parts; `wait()` returns when it is to end."""

    def __init__(self, host: str, port: int) -> None:
        self._listener = listen(host, port)
        self._host, self._port = host, self._listener.getsockname()[1]
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        config = uvicorn.Config(
            "appliance.asgi:application",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config)

    async def __aenter__(self) -> Address:
        token = await sync_to_async(_prepare)()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        scheduler = Scheduler()
        self._tasks = [
            asyncio.create_task(scheduler.run(self._stop), name="scheduler"),
            asyncio.create_task(self._server.serve(sockets=[self._listener]), name="web"),
        ]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._stop.set())
        waiting = [asyncio.create_task(event.wait()) for event in (scheduler.started, self._stop)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for waiter in waiting:
            waiter.cancel()
        if self._stop.is_set():
            await self.__aexit__()
        return Address(self._host, self._port, token)

    async def wait(self) -> None:
        await self._stop.wait()

    async def __aexit__(self, *_: object) -> None:
        """Stops both and raises what made either of them end by itself."""
        self._stop.set()
        self._server.should_exit = True
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._listener.close()
        for result in results:
            if isinstance(result, CANNOT_START):
                raise CommandError(str(result))
            if isinstance(result, BaseException):
                raise result
