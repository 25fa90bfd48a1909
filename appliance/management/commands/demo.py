from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from datetime import datetime
from typing import Any

import httpx
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from appliance.demo import image, story
from appliance.demo.story import NotObserved, Story
from appliance.running.ground import described
from appliance.running.parts import Stopped
from appliance.running.serve import Address, Appliance

PATIENCE = 30  # seconds until it begins without anybody


class Command(BaseCommand):
    help = "Starts the appliance and a demo: four containers share one GPU of 5 GiB."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.play_and_stay()
        except Stopped:
            if settings.DEMO_EXIT:
                raise CommandError("The demo was stopped before its end.") from None
            self.say("\n  Stopped. Running containers continue; the next start finds them, and ends those of the demo.")

    def play_and_stay(self) -> None:
        # On a machine that is busy with other things its lines would stand between those of the story.
        logging.getLogger("scheduler.watchdog").setLevel(logging.ERROR)
        with Appliance(settings.HOST, settings.PORT, link=not settings.DEMO_EXIT) as appliance:
            observed = appliance.parts.run("demo", lambda: self.run_show(appliance.address))
            if not settings.DEMO_EXIT:
                self.say(f"\n  The dashboard stays available: {appliance.address.url}   Ctrl-C ends it.")
                appliance.parts.wait()
            elif not observed:
                raise CommandError("A step of the demo failed.")

    def run_show(self, address: Address) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # the parent ends everything
            asyncio.run(self.show(address))

    async def show(self, address: Address) -> None:
        """Raises SystemExit if a step was not observed."""
        headers = {"Authorization": f"Token {address.token}"}
        api = f"{address.url}/api/v1/"
        # trust_env: this is our own address, where no proxy leads.
        async with httpx.AsyncClient(base_url=api, headers=headers, timeout=30, trust_env=False) as client:
            self.say(self.style.MIGRATE_HEADING("gpushare: containers share one GPU under quotas"))
            self.say(await where(client))
            if not settings.DEMO_EXIT:
                self.say(
                    f"  Watch it: {address.link}\n"
                    "  (it signs you in as 'admin', once, within ten minutes; after that, the password is in "
                    f"{settings.GPUSHARE_HOME / 'admin-token'})\n\n"
                    f"  The demo begins when you sign in, or in {PATIENCE} seconds."
                )
                await somebody_there(timezone.now())
            observed = await self.play(client)
            while not settings.DEMO_EXIT and sys.stdin.isatty():
                self.say("\n  Enter plays it again. Ctrl-C stops the appliance.")
                if not await key():
                    break
                observed = await self.play(client)
            if not observed:
                raise SystemExit(1)

    async def play(self, client: httpx.AsyncClient) -> bool:
        try:
            pause = 0.0 if settings.DEMO_EXIT else story.PAUSE
            await Story(client, await prepare(client), self.say, pause=pause).play()
        except NotObserved as error:
            self.stderr.write(self.style.ERROR(f"  Not observed: {error}"))
            return False
        self.say(self.style.SUCCESS("  Every step was observed: no program crashed, none deadlocked."))
        return True

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


async def somebody_there(since: datetime) -> None:
    """Returns when somebody has signed in, by the link or otherwise, and sees the page; or after PATIENCE."""
    come = User.objects.filter(last_login__gte=since)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            while not await come.aexists():  # noqa: ASYNC110 (another process writes it)
                await asyncio.sleep(0.2)
            await asyncio.sleep(min(story.PAUSE, 2.0))


async def key() -> bool:
    """Waits for Enter; false if there will be none."""
    pressed = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return bool(os.read(sys.stdin.fileno(), 4096))


async def where(client: httpx.AsyncClient) -> str:
    """On what this demo runs."""
    gpus = (await client.get("gpus/")).json()["results"]
    return described(gpus, (await client.get("nodes/")).json()["results"][0]["engine"])


async def prepare(client: httpx.AsyncClient) -> str:
    """The image to launch: the workload is among its programs."""
    engine = (await client.get("nodes/")).json()["results"][0]["engine"]
    if engine != "docker":
        return "local"
    return await sync_to_async(image.build)()
