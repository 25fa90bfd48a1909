"""Ends containers whose time is over: a warning, then SIGTERM, then SIGKILL."""

from __future__ import annotations

from scheduler.containers.ending import Ender
from scheduler.containers.life import Containers
from scheduler.parts import PERIODS
from scheduler.sessions.tenants import Tenant
from scheduler.store import Store
from web.models import AllocationEvent

WARNING = 60.0  # seconds before the end; a tenth of the whole time if that is less
GRACE = 10.0  # seconds from SIGTERM to SIGKILL


class TimeLimits:
    def __init__(self, ender: Ender, containers: Containers, store: Store) -> None:
        self._ender, self._containers, self._store = ender, containers, store
        self.warned: set[str] = set()

    async def start(self) -> None:
        """Learns who was warned by an earlier scheduler. Raises DatabaseError."""
        self.warned |= {id_ for id_, _ in await self._store.records.told_of(AllocationEvent.Kind.WARNED)}

    def look(self) -> None:
        living = self._containers.all()
        for tenant in living:
            self._look(tenant)
        self.warned &= {tenant.id for tenant in living}

    def _look(self, tenant: Tenant) -> None:
        if tenant.ttl is None or tenant.started_at is None or tenant.finished:
            return
        left = tenant.ttl - (self._store.clocks.now(tenant.id) - tenant.started_at).total_seconds()
        if left <= 0:
            self._ender.want(tenant, reason=f"Its time of {tenant.ttl:g} s was over.", grace=GRACE)
        elif left <= min(WARNING, max(tenant.ttl / 10, 2 * PERIODS["time limits"])) and tenant.id not in self.warned:
            self.warned.add(tenant.id)
            self._store.event("warned", tenant.id, detail=f"It will be ended in {left:.0f} s: its time is over.")
