"""The plugin, put together: it is served where a setting says whose containers may come by it, and the engine is
Docker's. What has come by it before is looked after in any case."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from django.conf import settings

from scheduler.containers.ending import Ender
from scheduler.containers.life import Containers
from scheduler.engines.base import Engine
from scheduler.plugin.driver import VolumeDriver
from scheduler.plugin.folders import Folders
from scheduler.plugin.mounts import Mounts
from scheduler.plugin.protocol import PluginServer
from scheduler.sessions.broker import Broker
from scheduler.sessions.server import Server
from scheduler.store import Store

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
        folders = Folders(home / "mounted", settings.GPUSHARE_BUILD / "libgpushare.so")
        self.mounts = Mounts(containers, engine.mountings, broker, server, ender, store, folders, home)
        self._driver = VolumeDriver(self.mounts, store)
        self._server = PluginServer(Path(settings.GPUSHARE_PLUGIN_SOCKET), self._driver.call)
        self._served = bool(settings.GPUSHARE_PLUGIN_PEOPLE)
        if self._served and engine.mountings is None:
            log.warning("The volume plugin (GPUSHARE_PLUGIN_PEOPLE) is not served: it needs the Docker engine.")
            self._served = False

    async def expect(self) -> None:
        """Before the engine is asked what it has. Raises DatabaseError."""
        await self.mounts.expect()
        await self._driver.open()

    async def run(self) -> None:
        """Until cancelled. Raises OSError if the socket cannot be made."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self.mounts.run())
            if self._served:
                both.create_task(self._server.run())
