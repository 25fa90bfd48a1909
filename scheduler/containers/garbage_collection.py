"""Clears away what could not be cleared at its moment, because the engine was away, or we were.

Ended containers that were to be removed when done; and what the engine still has of containers that we count as
removed, such as a launch that was refused because the engine did not answer, though it had done what it was asked.
The other way round, what was removed from the engine by others is counted as removed from then on. And what the engine
reported once and could not be taken in then.
"""

import contextlib
import logging
from collections.abc import Iterable

from django.db import DatabaseError

from scheduler import clock
from scheduler.containers.launch import Launcher
from scheduler.containers.registry import Containers
from scheduler.containers.removal import Removal
from scheduler.engines.base import EngineAway, EngineError
from scheduler.store import Store
from web.logs import ById

log = logging.getLogger(__name__)


class GarbageCollector:
    def __init__(self, containers: Containers, launcher: Launcher, removal: Removal, store: Store) -> None:
        self._containers, self._launcher, self._removal, self._store = containers, launcher, removal, store

    async def look(self) -> None:
        try:
            await self._clear()
        except DatabaseError as error:
            log.warning("nothing is cleared away for now, but what is known here: %s", error)
            with contextlib.suppress(EngineError):  # who has ended is seen all the same
                await self._end_refused(self._launcher.let_go_of.intersection(await self._containers.reconcile()))

    async def _clear(self) -> None:
        # First ours and then the engine's: what we know to have ended was in the engine before its list was made.
        kept = await self._store.records.kept()
        try:
            present = await self._containers.reconcile()
            for id_ in set(kept).difference(present):
                self._store.container(id_, removed_at=clock.now())
            await self._end_refused(await self._store.records.removed(present))
        except EngineError as error:
            log.debug("not cleared away for now: %s", error)
        for row in await self._store.records.leftovers():
            try:
                await self._removal.remove(row)
            except EngineAway:
                return  # it says so elsewhere; all are tried again
            except EngineError as error:
                log.warning("container %s has ended but cannot be removed: %s", row, error)

    async def _end_refused(self, ids: Iterable[str]) -> None:
        """These are not to run, and that is durable: nothing of it waits for the database. Raises EngineAway."""
        for id_ in ids:
            try:
                await self._launcher.clear_away(id_)
            except EngineAway:
                raise
            except EngineError as error:  # of this one: those behind it are not to run either
                log.warning("container %s is not to run, and cannot be ended yet: %s", ById(id_), error)
