"""`manage.py runscheduler`: the scheduler as a service of its own, beside an ASGI server."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from scheduler import notify, threads
from scheduler.starting import CANNOT_START, DatabaseAway, writing_in_words
from scheduler.store import Store
from scheduler.worker import Scheduler
from web.models import Node
from web.people.bootstrap import ensure_admin
from web.schema import refuse_newer, refuse_older


class Command(BaseCommand):
    help = "Runs this host's scheduler in the foreground. Stopping it leaves the containers running."

    def handle(self, *args: Any, **options: Any) -> None:
        gc.freeze()  # 100,000 objects that stay: a collection that visited them would delay decisions by 50 ms
        try:
            self._prepare()
            asyncio.run(serve(lambda: notify.tell("READY=1")))
        except CANNOT_START as error:
            raise CommandError(str(error)) from None

    def _prepare(self) -> None:
        try:
            with writing_in_words():
                refuse_newer()
                refuse_older()
                if not settings.GPUSHARE_AUDIT_KEY and not _joins():  # a node that joined makes no accounts
                    ensure_admin()  # the first start of a new appliance: somebody must be able to sign in
        except DatabaseAway:
            if not Store.may_start_alone():
                raise


def _joins() -> bool:
    """Whether another node lives: then there is an admin, and no key of theirs has to lie on this host, too."""
    return Node.objects.listed().alive().exclude(name=settings.GPUSHARE_NODE).exists()


async def serve(started: Callable[[], None] = lambda: None) -> None:
    """Runs until SIGTERM or SIGINT. `started` is called once it decides. Raises one of CANNOT_START."""
    os.umask(0o022)  # a file has the mode that it is made with: containers and the web side read some of them
    stop = asyncio.Event()
    threads.need_no_more(asyncio.get_running_loop())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    scheduler = Scheduler()
    telling = asyncio.create_task(_tell(scheduler, started))
    try:
        await scheduler.run(stop)
    finally:
        notify.tell("STOPPING=1")
        telling.cancel()


async def _tell(scheduler: Scheduler, started: Callable[[], None]) -> None:
    await scheduler.started.wait()
    started()
