"""The embedded start: one command, two processes, web and scheduler.

What strangers send never reaches the memory, the descriptors or the event loop of the process that decides. The two
meet in the database, and by hints (appliance/datagrams.py).
"""

from __future__ import annotations

import asyncio
import gc
import socket
from dataclasses import dataclass

import uvicorn
from django.core.management import CommandError, call_command
from django.db import connections
from django.urls import get_resolver

from appliance.asgi import application
from appliance.parts import CannotStart, Part, Parts, tell_started
from scheduler.management.commands.runscheduler import serve
from scheduler.worker import CANNOT_START, writing_in_words
from web.people.bootstrap import ensure_admin

BACKLOG = 2048


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
        with writing_in_words():
            call_command("migrate", verbosity=0, interactive=False)
            return ensure_admin()
    except CANNOT_START as error:
        raise CommandError(str(error)) from None


class Appliance:
    """`with Appliance(host, port) as appliance:` both run, and `appliance.parts` keeps them running."""

    def __init__(self, host: str, port: int) -> None:
        self._listener = listen(host, port)
        self._host, self._port = host, self._listener.getsockname()[1]
        self.parts = Parts(Part("scheduler", self._schedule), Part("web", self._answer))

    def __enter__(self) -> Appliance:
        self.address = Address(self._host, self._port, _prepare())
        connections.close_all()
        get_resolver().url_patterns  # noqa: B018 - imports all views, once for every start
        self._listener.listen(BACKLOG)  # while the web process starts again, clients wait instead of being refused
        gc.freeze()  # 100,000 objects that stay: a collection that visited them would delay decisions by 50 ms
        self.parts.__enter__()
        try:
            self.parts.wait_for_start()
        except BaseException as error:
            self.__exit__()
            if isinstance(error, CannotStart):
                raise CommandError(str(error)) from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.parts.__exit__()
        self._listener.close()

    def _schedule(self) -> None:
        self._listener.close()
        try:
            asyncio.run(serve(tell_started))
        except CANNOT_START as error:
            raise CannotStart(str(error)) from None

    def _answer(self) -> None:
        config = uvicorn.Config(
            application, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=2
        )
        uvicorn.Server(config).run(sockets=[self._listener])
