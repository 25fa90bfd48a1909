"""The plugin, put together: it is served where a setting says whose containers may come by it, and the engine is
Docker's. What has come by it before is looked after in any case."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from django.conf import settings

from scheduler.containers.ending import Ender
from scheduler.containers.life import Containers
from scheduler.engines.base import Engine, EngineError
from scheduler.gpus import Reading
from scheduler.plugin.driver import VolumeDriver
from scheduler.plugin.folders import Folders
from scheduler.plugin.mounts import Mounts
from scheduler.plugin.protocol import PluginServer
from scheduler.sessions.broker import Broker
from scheduler.sessions.server import Server
from scheduler.store import Store

ANNOUNCED_EVERY = 10.0  # seconds; a Swarm's node tells its managers of what it has every 20

log = logging.getLogger(__name__)


class Plugin:
    def __init__(
        self,
        containers: Containers,
        engine: Engine,
        broker: Broker,
        server: Server,
        ender: Ender,
        store: Store,
        home: Path,
    ) -> None:
        self._engine = engine
        folders = Folders(home / "mounted", settings.GPUSHARE_BUILD / "libgpushare.so")
        self.mounts = Mounts(containers, engine.mountings, broker, server, ender, store, folders, home)
        self._driver = VolumeDriver(self.mounts, store)
        self._server = PluginServer(Path(settings.GPUSHARE_PLUGIN_SOCKET), self._driver.call)
        self._serving: asyncio.Task[None] | None = None
        self._served = engine.in_swarm or bool(settings.GPUSHARE_PLUGIN_PEOPLE)
        if self._served and engine.mountings is None:
            log.warning("The volume plugin (GPUSHARE_PLUGIN_PEOPLE) is not served: it needs the Docker engine.")
            self._served = False

    async def expect(self) -> None:
        """Before the engine is asked what it has. Raises DatabaseError."""
        await self.mounts.expect()
        await self._driver.open()
        if self._served:
            # While Docker waits for an answer of ours, it shows nobody that container: it has it before it is asked.
            self._serving = asyncio.create_task(self._server.run())

    def see(self, readings: Mapping[str, Reading]) -> None:
        """With each reading of the cards: Docker is not told of them."""

    def give_again(self) -> None:
        """After the sockets were opened anew."""
        self.mounts.give_again()

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    async def run(self) -> None:
        """Once all is taken over, until cancelled. Raises OSError if the socket cannot be made."""
        await self._driver.begin()
        async with asyncio.TaskGroup() as both:
            both.create_task(self.mounts.run())
            if self._served:
                both.create_task(self._serve())
                both.create_task(self._announce())

    async def _serve(self) -> None:
        serving, self._serving = self._serving, None
        await (serving or self._server.run())

    async def _announce(self) -> None:
        """Again and again: a Docker that was restarted knows of no plugin until one is asked for something."""
        while self._engine.mountings is not None and self._engine.in_swarm:
            try:
                await self._engine.mountings.announce()
            except EngineError as error:
                log.debug("Docker does not ask for our volumes: %s", error)
            await asyncio.sleep(ANNOUNCED_EVERY)
