"""`manage.py runscheduler`: the scheduler as a service of its own, beside an ASGI server."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from scheduler.worker import CANNOT_START, Scheduler, database_in_words
from web.people.bootstrap import ensure_admin


class Command(BaseCommand):
    help = "Runs this host's scheduler in the foreground. Stopping it leaves the containers running."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with database_in_words():
                ensure_admin()  # the first start of a new appliance: somebody must be able to sign in
            asyncio.run(_run())
        except CANNOT_START as error:
            raise CommandError(str(error)) from None


async def _run() -> None:
    gc.freeze()  # 100,000 objects that stay: looking through them would hold a decision up for 50 ms and more
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await Scheduler().run(stop)
