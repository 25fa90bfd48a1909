from __future__ import annotations

import asyncio
import gc
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from appliance.serve import Appliance


class Command(BaseCommand):
    help = "Runs the whole appliance in one process, in the foreground: web, scheduler, SQLite."

    def handle(self, *args: Any, **options: Any) -> None:
        asyncio.run(self.run())

    async def run(self) -> None:
        appliance = Appliance(settings.HOST, settings.PORT)
        gc.freeze()  # 100,000 objects that stay: looking through them would hold a decision up for 50 ms and more
        async with appliance as address:
            self.stdout.write(
                f"gpushare is up: {address.url}\n"
                f"  sign in as 'admin' with the token in {settings.GPUSHARE_HOME / 'admin-token'} as the password\n"
                f"  Ctrl-C stops it; containers go on running and are found again at the next start."
            )
            await appliance.wait()
