"""Notes the audit chain's end outside of the database each second, and tells if that was cut off or replaced."""

import logging

from django.db import DatabaseError

from scheduler import clock
from scheduler.store import Store
from web.audit import anchor

log = logging.getLogger(__name__)

LOGGED_EVERY = 60.0  # seconds


class Anchoring:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._logged_at = -LOGGED_EVERY

    async def look(self) -> None:
        try:
            await self._store.ask(anchor.keep)
            self._store.node(audit_error="")
        except (anchor.Moved, ValueError, OSError, DatabaseError) as error:
            if not isinstance(error, DatabaseError):  # that is no fault of the chain
                self._store.node(audit_error=str(error)[:500])
            if clock.monotonic() - self._logged_at >= LOGGED_EVERY:
                self._logged_at = clock.monotonic()
                log.error("the audit log has no new anchor: %s", error)
