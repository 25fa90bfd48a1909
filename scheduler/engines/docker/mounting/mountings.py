"""What a volume plugin asks of this engine (`Mountings` of engines/base.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.engines.base import EngineError, MountUser, Run
from scheduler.engines.docker.client import Client
from scheduler.engines.docker.watch import Watch

# Seconds. Docker waits for our answer meanwhile; while it starts, it starts containers and lists none.
LISTS_WITHIN, ASKED_AGAIN_AFTER = 3.0, 5.0


class DockerMountings:
    def __init__(self, client: Client, watch: Watch) -> None:
        self._client, self._watch, self._mounted = client, watch, watch.mounted
        self._not_before = 0.0  # on the monotonic clock

    @property
    def told(self) -> Callable[[str, Mapping[str, Any]], None]:
        return self._watch.found_out

    @told.setter
    def told(self, told: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._watch.found_out = told

    @property
    def restarted_at(self) -> float:
        return self._watch.broke_off

    def expect(self, run: Run) -> None:
        self._mounted.expect(run)

    def again(self, id_: str) -> None:
        self._mounted.again(id_)

    def forget(self, id_: str) -> None:
        self._mounted.forget(id_)

    async def users(self, volume: str) -> Sequence[MountUser] | None:
        if time.monotonic() < self._not_before:
            return None
        try:
            async with asyncio.timeout(LISTS_WITHIN):
                return await self._client.call(self._mounted.users, self._client.look, volume)
        except (EngineError, TimeoutError):
            self._not_before = time.monotonic() + ASKED_AGAIN_AFTER
            return None

    async def announce(self) -> None:
        """Docker knows of a plugin once it has asked it something; a Swarm passes by who does not know of ours."""
        await self._client.call(self._client.look.volumes)

    async def look(self, id_: str) -> None:
        run = self._mounted.run(id_)
        if run is not None and run.engine_id:
            await self._watch.look(run.engine_id)
        else:
            await self._watch.reconcile()
