"""Ends containers whose time is over: a warning, then SIGTERM, then SIGKILL."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from django.utils import timezone

from scheduler.containers.life import Containers
from scheduler.engines.base import EngineError
from scheduler.sessions.broker import Broker
from scheduler.sessions.tenants import Tenant
from scheduler.store import Store
from web.errors import Problem

log = logging.getLogger(__name__)

WARNING = 60.0  # seconds before the end; a tenth of the whole time if that is less
GRACE = 10.0  # seconds from SIGTERM to SIGKILL
LOOK_EVERY = 0.5


class Limits:
    def __init__(self, containers: Containers, broker: Broker, store: Store) -> None:
        self._containers = containers
        self._broker = broker
        self._store = store
        self._warned: set[str] = set()
        self._ending: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        while True:
            for tenant in list(self._broker.tenants.values()):
                self._look(tenant)
            alive = self._broker.tenants.keys()
            self._warned &= alive
            self._ending = {id_: task for id_, task in self._ending.items() if id_ in alive}
            await asyncio.sleep(LOOK_EVERY)

    def _look(self, tenant: Tenant) -> None:
        if tenant.ttl is None or tenant.started_at is None or tenant.finished or tenant.id in self._ending:
            return
        left = (tenant.started_at + timedelta(seconds=tenant.ttl) - timezone.now()).total_seconds()
        if left <= 0:
            self._ending[tenant.id] = asyncio.create_task(self._end(tenant))
        elif left <= min(WARNING, max(tenant.ttl / 10, 2 * LOOK_EVERY)) and tenant.id not in self._warned:
            self._warned.add(tenant.id)
            self._store.event("warned", tenant.id, detail=f"It will be ended in {left:.0f} s: its time is over.")

    async def _end(self, tenant: Tenant) -> None:
        reason = f"Its time of {tenant.ttl:g} s was over."
        try:
            await self._containers.kill(tenant, grace=GRACE, reason=reason)
        except (Problem, EngineError) as error:
            log.warning("container %s could not be ended, trying again: %s", tenant.name, error)
            await asyncio.sleep(GRACE)
            self._ending.pop(tenant.id, None)
