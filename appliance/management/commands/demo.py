from __future__ import annotations

import asyncio
from typing import Any

import httpx
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from appliance.demo import image
from appliance.demo.story import NotObserved, Story
from appliance.running.parts import Stopped
from appliance.running.serve import Address, Appliance


class Command(BaseCommand):
    help = "Starts the appliance and plays the main job: four containers share one card of 5 GiB."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self.play_and_stay()
        except Stopped:
            if settings.DEMO_EXIT:
                raise CommandError("The demo was stopped before its end.") from None

    def play_and_stay(self) -> None:
        with Appliance(settings.HOST, settings.PORT) as appliance:
            observed = appliance.parts.run("demo", lambda: asyncio.run(self.show(appliance.address)))
            if not settings.DEMO_EXIT:
                self.say(f"\n  The dashboard stays up: {appliance.address.url}   Ctrl-C ends it.")
                appliance.parts.wait()
            elif not observed:
                raise CommandError("The demo did not go as it should.")

    async def show(self, address: Address) -> None:
        """Raises SystemExit if a step was not observed."""
        headers = {"Authorization": f"Token {address.token}"}
        async with httpx.AsyncClient(base_url=f"{address.url}/api/v1/", headers=headers, timeout=30) as client:
            self.say(self.style.MIGRATE_HEADING("gpushare: containers share one GPU under quotas"))
            self.say(await where(client))
            self.say(f"  Watch it: {address.url}  (sign in as 'admin', password: {address.token})\n")
            if not await self.play(client):
                raise SystemExit(1)

    async def play(self, client: httpx.AsyncClient) -> bool:
        try:
            await Story(client, await prepare(client), self.say).play()
        except NotObserved as error:
            self.stderr.write(self.style.ERROR(f"  Not observed: {error}"))
            return False
        self.say(self.style.SUCCESS("  Every step was observed: nobody crashed, nobody waits for ever."))
        return True

    def say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


async def where(client: httpx.AsyncClient) -> str:
    """One line that says on what this demo runs, and plainly when the card is not a real one."""
    gpus = (await client.get("gpus/")).json()["results"]
    engine = (await client.get("nodes/")).json()["results"][0]["engine"]
    card = ", ".join(f"{gpu['name']} ({gpu['capacity'] / 2**30:.1f} GiB to share)" for gpu in gpus)
    kind = "  No NVIDIA GPU was found, so this card is SIMULATED.\n" if gpus[0]["simulated"] else ""
    runs = "Docker containers" if engine == "docker" else "local processes (no Docker engine answered)"
    return f"  Card: {card}\n{kind}  Running: {runs}"


async def prepare(client: httpx.AsyncClient) -> str:
    """The image to launch: the workload is among its programs."""
    engine = (await client.get("nodes/")).json()["results"][0]["engine"]
    if engine != "docker":
        return "local"
    return await sync_to_async(image.build)()
