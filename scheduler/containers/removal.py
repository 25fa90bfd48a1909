"""Taking ended containers away from the engine, at once or, where that could not be done at its moment, later."""

import logging

from django.db import DatabaseError

from scheduler import clock
from scheduler.containers.intents import Intents
from scheduler.engines.base import Engine, EngineError
from scheduler.parts import Background
from scheduler.store import Store
from web.logs import ById
from web.models import Container

log = logging.getLogger(__name__)


class Removal:
    def __init__(self, engine: Engine, intents: Intents, store: Store) -> None:
        self._engine, self._intents, self._store = engine, intents, store
        self._under_way = Background()

    async def remove(self, row: Container) -> None:
        """Raises EngineError or DatabaseError."""
        id_ = str(row.pk)
        # Which container this is, the engine says: whoever writes the database could name any in the row.
        seen = {each.id: each.engine_id for each in await self._engine.statuses()} if row.engine_id else {}
        if id_ in seen:
            await self._remove(id_, seen[id_])
        else:
            self._store.container(id_, removed_at=clock.now())

    def begin(self, id_: str, engine_id: str) -> None:
        """Of one that was to be removed when done. If it fails it is tried again (garbage_collection.py)."""
        self._under_way.begin(self._remove_quietly(id_, engine_id))

    async def _remove_quietly(self, id_: str, engine_id: str) -> None:
        try:
            await self._remove(id_, engine_id)
        except (EngineError, DatabaseError) as error:
            log.warning("container %s has ended but cannot be removed: %s", ById(id_), error)

    async def _remove(self, id_: str, engine_id: str) -> None:
        await self._intents.durable()  # its exit code is nowhere else
        await self._engine.remove(engine_id)
        self._store.container(id_, removed_at=clock.now())
