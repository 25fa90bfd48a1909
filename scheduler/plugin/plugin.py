"""The plugin, put together: it is served where a setting says whose containers may come by it, and the engine is
Docker's. What has come by it before is looked after in any case.

    open      before the engine is found: Docker that starts asks for its volumes, and answers nobody meanwhile
    meet      the engine, and whoever decides
    expect    before the engine is asked what it has
    run       once all is taken over
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from django.conf import settings

from scheduler.card.turns import TurnPlayer
from scheduler.containers.registry import Containers
from scheduler.containers.terminator import Terminator
from scheduler.engines.base import EngineError
from scheduler.engines.runtime_environment import RuntimeEnvironment
from scheduler.gpus import Gpus, Reading
from scheduler.plugin.driver import NOT_YET, VolumeDriver
from scheduler.plugin.folders import Folders
from scheduler.plugin.mounts import Mounts
from scheduler.plugin.protocol import PluginServer
from scheduler.shared import SharedParts
from scheduler.store import Store

ANNOUNCED_EVERY = 10.0  # seconds; a Swarm's node tells its managers of what it has every 20

log = logging.getLogger(__name__)


class Plugin:
    def __init__(self, home: Path, gpus: Gpus, store: Store) -> None:
        self._folders = Folders(home / "mounted", settings.GPUSHARE_BUILD / "libgpushare.so")
        self._driver = VolumeDriver(store, self._folders)
        self._server = PluginServer(Path(settings.GPUSHARE_PLUGIN_SOCKET), self._driver.call)
        self._serving: asyncio.Task[None] | None = None
        self._closing = AsyncExitStack()
        self._driver_name = Path(settings.GPUSHARE_PLUGIN_SOCKET).stem

    async def open(self) -> None:
        """Raises DatabaseError."""
        await self._driver.open()
        # Whether Docker is in a Swarm it cannot be asked yet: where it is, and has something to ask, there are volumes.
        if settings.GPUSHARE_ENGINE != "process" and (settings.GPUSHARE_PLUGIN_PEOPLE or self._driver.has_volumes):
            self._begin_serving()

    def engine(self, runtime_environment: RuntimeEnvironment) -> None: ...

    def meet(self, shared: SharedParts, containers: Containers, ender: Terminator, turns: TurnPlayer) -> None:
        self._engine = engine = shared.engine
        self.mounts = Mounts(shared, containers, ender, self._folders)
        self._closing.push_async_callback(self.mounts.close)
        self._served = engine.in_swarm or bool(settings.GPUSHARE_PLUGIN_PEOPLE)
        if self._served and engine.mountings is None:
            log.warning("The volume plugin (GPUSHARE_PLUGIN_PEOPLE) is not served: it needs the Docker engine.")
            self._served = False

    async def expect(self) -> None:
        """Raises DatabaseError."""
        if self._served:
            # While Docker waits for an answer of ours, it shows nobody that container: it has it before it is asked.
            self._begin_serving()
        else:
            await self._stop_serving()
        await self.mounts.expect()

    def _begin_serving(self) -> None:
        self._serving = self._serving or asyncio.create_task(self._server.run())

    def see(self, readings: Mapping[str, Reading]) -> None: ...

    def give_again(self) -> None:
        """After the sockets were opened anew."""
        self.mounts.give_again()

    async def close(self) -> None:
        await self._stop_serving()
        await self._closing.aclose()

    async def _stop_serving(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def run(self) -> None:
        """Once all is taken over, until cancelled. Raises OSError if the socket cannot be made."""
        await self._driver.begin(self.mounts)
        async with asyncio.TaskGroup() as both:
            both.create_task(self.mounts.run())
            if self._served:
                both.create_task(self._serve())
                both.create_task(self._announce())
                both.create_task(self._begin_given_up())

    async def _serve(self) -> None:
        serving, self._serving = self._serving, None
        await (serving or self._server.run())

    async def _begin_given_up(self) -> None:
        """Once: what Docker wanted to restart before we were here, or had started, as after a boot."""
        while self._engine.mountings is not None:
            try:
                for name in await self._engine.mountings.begin_given_up(self._driver_name, NOT_YET):
                    log.info("started %s, which Docker had given up for want of its volume", name)
            except EngineError as error:
                log.debug("what Docker has given up is looked at later: %s", error)
                await asyncio.sleep(ANNOUNCED_EVERY)
            else:
                return

    async def _announce(self) -> None:
        """Again and again: a Docker that was restarted knows of no plugin until one is asked for something."""
        while self._engine.mountings is not None and self._engine.in_swarm:
            try:
                await self._engine.mountings.announce()
            except EngineError as error:
                log.debug("Docker does not ask for our volumes: %s", error)
            await asyncio.sleep(ANNOUNCED_EVERY)
