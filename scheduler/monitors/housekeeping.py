"""What is done each minute so that the records do not grow for ever, and nothing in them waits for ever."""

import logging

from django.conf import settings
from django.db import DatabaseError

from scheduler import clock
from scheduler.store import Store
from web.history.rollup import roll_up
from web.people.signin import forget_sessions
from web.services import nodes

log = logging.getLogger(__name__)


class Housekeeping:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def look(self) -> None:
        try:
            await self._store.ask(roll_up, clock.now(), self._store.here)
            if not settings.GPUSHARE_AUDIT_KEY:  # people and nodes are the appliance's own host's business
                await self._store.ask(forget_sessions, clock.now())
                await self._store.ask(nodes.lose_late)
        except DatabaseError as error:
            log.warning("the records could not be kept short, trying again in a minute: %s", error)
