"""`manage.py runweb`: the web side as a service of its own, beside a scheduler."""

import socket
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections

from appliance.running.listening import answer, listen
from web.schema import NewerDatabase, refuse_newer


class Command(BaseCommand):
    help = "Runs the web side at HOST and PORT. Several may share one database."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--fd", type=int, help="descriptor of a listening socket, instead of HOST and PORT")

    def handle(self, *args: Any, fd: int | None = None, **options: Any) -> None:
        try:
            with suppress(DatabaseError):  # one that is away may be there for the first request
                refuse_newer()
        except NewerDatabase as error:
            raise CommandError(str(error)) from None
        connections.close_all()
        listener = listen(settings.HOST, settings.PORT) if fd is None else socket.socket(fileno=fd)
        if fd is None:
            self.stdout.write(f"gpushare answers at {settings.HOST}:{listener.getsockname()[1]}")
            self.stdout.flush()
        answer(listener)
