"""Finds containers with a process that bypassed the shim; reports each once, and kills it if configured."""

import logging
from collections.abc import Mapping

from django.conf import settings

from scheduler.containers.terminator import Terminator
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store
from web.models import AllocationEvent
from web.sizes import format_size

log = logging.getLogger(__name__)

TIMES = 3  # measurements in a row: a process that connects just now is none that got past


class Bypass:
    """`GPUSHARE_BYPASS_ACTION` is `show` (pages, log and history tell of it) or `kill`."""

    def __init__(self, ender: Terminator, broker: Broker, store: Store) -> None:
        self._ender, self._broker, self._store = ender, broker, store
        self._seen: dict[str, int] = {}
        self._reported: set[tuple[str, int | None]] = set()  # by an earlier scheduler: container and process

    async def start(self) -> None:
        """Raises DatabaseError."""
        self._reported = await self._store.records.reported(AllocationEvent.Kind.BYPASS)

    def look(self, uncapped: Mapping[str, Mapping[int, int]]) -> bool:
        """`uncapped`: container → host pid → bytes in all, as the cards show them now.

        Whether somebody has been seen, and not often enough: to be looked at again soon.
        """
        live_containers = self._broker.live_containers
        self._seen = {id_: self._seen.get(id_, 0) + 1 for id_ in uncapped if id_ in live_containers}
        for id_, times in self._seen.items():
            live = live_containers[id_]
            if times == TIMES:
                self._tell(live, uncapped[id_])
            if times >= TIMES and settings.GPUSHARE_BYPASS_ACTION == "kill":
                self._ender.want(live, reason="One of its processes took GPU memory without the shim.")
        return any(times < TIMES for times in self._seen.values())

    def computes_stopped(self, container: str) -> None:
        """It computes although all of it is stopped, as others have their turn."""
        if settings.GPUSHARE_BYPASS_ACTION == "kill" and (live := self._broker.live_containers.get(container)):
            self._ender.want(live, reason="It computed during the turns of others.")

    def _tell(self, live: LiveContainer, processes: Mapping[int, int]) -> None:
        for pid, size in processes.items():
            if (live.id, pid) in self._reported:
                continue
            text = f"Process {pid} holds {format_size(size)} past the shim."
            log.warning("container %s: %s", live, text)
            self._store.event("bypass", live.id, pid=pid, size=size, detail=text)
