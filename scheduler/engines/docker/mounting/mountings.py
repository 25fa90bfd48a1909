"""What a volume plugin asks of this engine (`Mountings` of engines/base.py)."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from docker import APIClient
from docker.errors import NotFound

from scheduler import clock
from scheduler.engines.base import EngineError, MountUser, Run
from scheduler.engines.docker.client import Client
from scheduler.engines.docker.events import past
from scheduler.engines.docker.watch import Watch

# Seconds. Docker waits for our answer meanwhile; while it starts, it starts containers and lists none.
LISTS_WITHIN, ASKED_AGAIN_AFTER = 3.0, 5.0


RESTARTED = ("always", "unless-stopped", "on-failure")

log = logging.getLogger(__name__)


class DockerMountings:
    def __init__(self, client: Client, watch: Watch) -> None:
        self._client, self._watch, self._mounted = client, watch, watch.mounted
        self._not_before = 0.0  # on the monotonic clock

    def report_to(self, found: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._watch.found_out = found

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
        if clock.monotonic() < self._not_before:
            return None
        try:
            async with asyncio.timeout(LISTS_WITHIN):
                return await self._client.call(self._mounted.users, self._client.look, volume)
        except (EngineError, TimeoutError):
            self._not_before = clock.monotonic() + ASKED_AGAIN_AFTER
            return None

    def stopped(self, id_: str) -> bool:
        return self._watch.has_ended(id_)

    async def announce(self) -> None:
        """Docker knows of a plugin once it has asked it something; a Swarm passes by who does not know of ours."""
        await self._client.call(self._client.look.volumes)

    async def recall(self, since: float) -> None:
        """Docker keeps its last 256 events, until it is restarted: of `docker run --rm` nothing else is left."""
        missed = await self._client.call(past, self._client.look, since)
        ours = [each for each in missed if self._mounted.happened(*each)]
        for engine_id in {engine_id for engine_id, change, *_ in ours if change == "die"}:
            await self._watch.look(engine_id)

    async def begin_given_up(self, driver: str, refused: str) -> Sequence[str]:
        """After a boot Docker looks for a plugin for 15 s twice a volume, is up only then, and does not try again.

        Nor does it where the plugin was there and had to refuse: who starts needs Docker, which waits for its answer.
        """
        reasons = (f"error looking up volume plugin {driver}", refused)
        begun = []
        for id_, name in await self._client.call(_given_up, self._client.look, driver, reasons):
            try:
                await self._client.call(self._client.api.start, id_)
            except EngineError as error:
                log.warning("Docker does not start %s, whose volume found no plugin before: %s", name, error)
            else:
                begun.append(name)
        return begun

    async def look(self, id_: str) -> None:
        run = self._mounted.run(id_)
        if run is not None and run.engine_id:
            await self._watch.look(run.engine_id)
        else:
            await self._watch.reconcile()


def _given_up(api: APIClient, driver: str, reasons: Sequence[str]) -> list[tuple[str, str]]:
    """Id and name of those that ran before, are to run again, and for one of these reasons did not."""
    found = []
    for listed in api.containers(all=True, filters={"status": "exited"}):
        if not any(mount.get("Driver") == driver for mount in listed["Mounts"]):
            continue
        try:
            seen = api.inspect_container(listed["Id"])
        except NotFound:
            continue
        restarted = seen["HostConfig"]["RestartPolicy"]["Name"] in RESTARTED
        if restarted and any(reason in seen["State"]["Error"] for reason in reasons):
            found.append((listed["Id"], seen["Name"].removeprefix("/")))
    return found
