"""The embedded start: one command, two processes, web and scheduler.

What strangers send never reaches the memory, the descriptors or the event loop of the process that decides. The two
meet in the database, and by hints (appliance/datagrams.py).
"""

import asyncio
import gc
import socket
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.urls import get_resolver

from appliance.running import door, web_user
from appliance.running.listening import BACKLOG, answer, listen
from appliance.running.parts import CannotStart, Part, Parts, tell_started
from scheduler.management.commands.runscheduler import serve
from scheduler.starting import CANNOT_START, writing_in_words
from web.people import links
from web.people.bootstrap import ADMIN, ensure_admin
from web.people.links import is_loopback
from web.schema import refuse_newer


@dataclass(frozen=True, slots=True)
class Address:
    """Where the appliance answers, the token of its first administrator, and the key of a link that signs them in."""

    host: str
    port: int
    token: str
    key: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def link(self) -> str:
        """As a browser elsewhere would reach it, if one may."""
        names = [name for name in settings.ALLOWED_HOSTS if name[:1] not in "*." and not is_loopback(name.strip("[]"))]
        url = self.url
        if not is_loopback(self.host):
            known = f"http://{names[0]}:{self.port}" if names else self.url
            url = next(iter(settings.CSRF_TRUSTED_ORIGINS), known)
        return f"{url}/enter/#{self.key}"


def _prepare(host: str, *, link: bool) -> tuple[str, str]:
    """The database as this release needs it. The first administrator's token, and a link's key if one is wanted."""
    try:
        if settings.GPUSHARE_WEB_USER:
            web_user.share(settings.GPUSHARE_HOME, settings.GPUSHARE_WEB_USER)
        with writing_in_words():
            refuse_newer()
            call_command("migrate", verbosity=0, interactive=False)
            token = ensure_admin()
            admin = User.objects.filter(username=ADMIN, is_active=True).first()
            return token, links.make(admin, loopback=is_loopback(host)) if link and admin else ""
    except (*CANNOT_START, CannotStart) as error:
        raise CommandError(str(error)) from None


def _lose_rights() -> None:
    if user := settings.GPUSHARE_WEB_USER:
        name = settings.DATABASES["default"]["NAME"]
        database = Path(name) if connection.vendor == "sqlite" else None
        web_user.become(user, settings.GPUSHARE_HOME, database, settings.BASE_DIR)


class Appliance:
    """`with Appliance(host, port) as appliance:` both run, and `appliance.parts` keeps them running."""

    def __init__(self, host: str, port: int, *, link: bool = False) -> None:
        """`link`: to make one that signs in."""
        self._link = link
        self._listener = listen(host, port)
        self._host, self._port = host, self._listener.getsockname()[1]
        self._door = door.listeners()
        self.parts = Parts(
            Part("scheduler", self._schedule),
            Part("web", self._answer, _lose_rights),
            *([Part("door", self._let_in, _lose_rights)] if any(self._door) else []),
        )

    def __enter__(self) -> "Appliance":
        self.address = Address(self._host, self._port, *_prepare(self._host, link=self._link))
        connections.close_all()
        get_resolver().url_patterns  # noqa: B018 - imports all views, once for every start
        for listener in self._listeners:
            listener.listen(BACKLOG)  # while the web process starts again, clients wait instead of being refused
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
        for listener in self._listeners:
            listener.close()

    @property
    def _listeners(self) -> list[socket.socket]:
        return [self._listener, *filter(None, self._door)]

    def _schedule(self) -> None:
        for listener in self._listeners:
            listener.close()
        try:
            asyncio.run(serve(tell_started))
        except CANNOT_START as error:
            raise CannotStart(str(error)) from None

    def _answer(self) -> None:
        for listener in filter(None, self._door):
            listener.close()
        answer(self._listener)

    def _let_in(self) -> None:
        self._listener.close()
        door.let_in(*self._door)
