"""The web side as a server of its own, over a database that the test shares with it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from django.apps import apps
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import Group, User
from django.db import connections

from tests.support.tables import begin_with_tables

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "a long enough password"


@dataclass
class Site:
    url: str
    home: Path
    process: subprocess.Popen[bytes]
    blocker: Any

    @contextmanager
    def database(self) -> Iterator[None]:
        """Inside, the default database is the server's, empty at first."""
        alias = "site"
        connections.databases[alias] = {
            **connections["default"].settings_dict,
            "NAME": str(self.home / "gpushare.sqlite3"),
        }
        old = connections["default"]
        with self.blocker.unblock():
            connections["default"] = connections.create_connection(alias)
            connections["default"].alias = "default"
            try:
                self._empty()
                yield
            finally:
                connections["default"].close()
                connections["default"] = old
                del connections.databases[alias]

    def _empty(self) -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("PRAGMA foreign_keys = OFF")
            for model in apps.get_models(include_auto_created=True):
                if model._meta.app_label in ("web", "auth", "sessions", "admin") and model.__name__ != "Permission":
                    cursor.execute(f'DELETE FROM "{model._meta.db_table}"')
            cursor.execute("PRAGMA foreign_keys = ON")

    def cookie(self, user: User) -> dict[str, str]:
        """A session as sign-in makes it."""
        session = import_module(settings.SESSION_ENGINE).SessionStore()
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.create()
        return {"name": settings.SESSION_COOKIE_NAME, "value": session.session_key, "url": self.url}


@cache
def _hashed() -> str:
    """PASSWORD as everybody has it, as the server knows it whatever this process hashes with; a third of a second."""
    return PBKDF2PasswordHasher().encode(PASSWORD, "salt")


def person(name: str, role: str = "user") -> User:
    """A user with a role, made if there is none of that name."""
    user, created = User.objects.get_or_create(username=name, defaults={"password": _hashed()})
    if created:
        user.groups.add(Group.objects.get_or_create(name=role)[0])
    return user


@contextmanager
def running_site(home: Path, blocker: Any, **environment: str) -> Iterator[Site]:
    """`manage.py runweb`, on a port that the kernel chose, with a home of its own."""
    env = {
        **os.environ,
        "DATABASE_URL": f"sqlite:///{home / 'gpushare.sqlite3'}",
        "GPUSHARE_HOME": str(home),
        "GPUSHARE_SECRET_KEY": settings.SECRET_KEY,  # so that sessions made by a test are good for the server
        "DJANGO_SETTINGS_MODULE": "appliance.settings",
        **environment,
    }
    run: dict[str, Any] = {"cwd": ROOT, "env": env}
    if "DATABASE_URL" in environment:
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], check=True, **run)
    else:
        begin_with_tables(home / "gpushare.sqlite3")
    with socket.create_server(("127.0.0.1", 0)) as listener, open(home / "server.log", "wb") as log:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the appliance does
        fd = listener.fileno()
        command = [sys.executable, "manage.py", "runweb", "--fd", str(fd)]
        process = subprocess.Popen(command, pass_fds=[fd], stdout=log, stderr=log, **run)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            httpx.get(f"{url}/login/", timeout=120).raise_for_status()  # waits: the socket already listens
            yield Site(url, home, process, blocker)
        finally:
            process.terminate()
            process.wait(60)
