"""Ends containers whose time is over: a warning, then SIGTERM, then SIGKILL."""

from __future__ import annotations

import asyncio

from scheduler.containers.ending import Ender
from scheduler.containers.life import Containers
from scheduler.sessions.tenants import Tenant
from scheduler.store import Store

WARNING = 60.0  # seconds before the end; a tenth of the whole time if that is less
GRACE = 10.0  # seconds from SIGTERM to SIGKILL
LOOK_EVERY = 0.5


class TimeLimits:
    def __init__(self, ender: Ender, containers: Containers, store: Store) -> None:
        self._ender = ender
        self._containers = containers
        self._store = store
        self.warned: set[str] = set()  # by an earlier scheduler, too

    async def run(self) -> None:
        while True:
            living = self._containers.all()
            for tenant in living:
                self._look(tenant)
            self.warned &= {tenant.id for tenant in living}
            await asyncio.sleep(LOOK_EVERY)

    def _look(self, tenant: Tenant) -> None:
        if tenant.ttl is None or tenant.started_at is None or tenant.finished:
            return
        left = tenant.ttl - (self._store.clocks.now(tenant.id) - tenant.started_at).total_seconds()
        if left <= 0:
            self._ender.want(tenant, reason=f"Its time of {tenant.ttl:g} s was over.", grace=GRACE)
        elif left <= min(WARNING, max(tenant.ttl / 10, 2 * LOOK_EVERY)) and tenant.id not in self.warned:
            self.warned.add(tenant.id)
            self._store.event("warned", tenant.id, detail=f"It will be ended in {left:.0f} s: its time is over.")
