"""Taking over: what a new scheduler finds living is known, as it is, before any socket is open.

What is found is what the engine has and the rows mean (intents.py); that a start was recorded is not asked for.
"""

from __future__ import annotations

import asyncio
import logging
import os

from scheduler.containers.life import Containers, as_tenant
from scheduler.engines.base import Engine
from scheduler.gpus import Gpus
from scheduler.sessions import lease_pages
from scheduler.sessions.broker import Broker
from scheduler.sessions.processes import Sessions
from scheduler.sessions.server import Server
from scheduler.sessions.tenants import Tenant, start_time
from scheduler.store import Store
from web.models import Container

log = logging.getLogger(__name__)


class TakeOver:
    def __init__(
        self,
        containers: Containers,
        engine: Engine,
        broker: Broker,
        sessions: Sessions,
        server: Server,
        gpus: Gpus,
        store: Store,
    ) -> None:
        self._containers = containers
        self._engine = engine
        self._broker = broker
        self._sessions = sessions
        self._server = server
        self._gpus = gpus
        self._store = store

    async def run(self) -> None:
        """Once, after a start. Raises EngineAway or DatabaseError."""
        told = await self._store.records.told()
        present = {sighting.id: sighting.engine_id for sighting in await self._engine.sightings()}
        launching = set()  # to come still, or under way: its program may look for the socket already
        for row in await self._store.records.living():
            if engine_id := row.engine_id or present.get(str(row.pk), ""):
                self._container(row, engine_id, told.get(str(row.pk), {}))
            else:
                launching.add(str(row.pk))
        for pid, container in await asyncio.to_thread(lease_pages.holders):
            if tenant := self._broker.tenants.get(container):
                self._process(tenant, pid)
        await self._containers.reconcile()
        living = {tenant.id for tenant in self._containers.all() if not tenant.finished}
        self._server.clear(living | launching)
        for id_ in living & self._broker.tenants.keys():
            self._server.listen(id_)

    def _container(self, row: Container, engine_id: str, told: dict[str, int]) -> None:
        claims = [claim for claim in row.claims.all() if claim.gpu.uuid in self._gpus.cards]
        # A larger quota is promised before it is given: what was given is in the row, and its command is still open.
        tenant = as_tenant(row, {claim.gpu.uuid: row.gpu_memory or claim.quota for claim in claims})
        tenant.engine_id = engine_id
        tenant.started_at = row.started_at
        tenant.paused = row.paused_at is not None
        tenant.idle = row.idle_since is not None
        tenant.killed = row.kill_requested_at is not None
        tenant.reason = row.reason
        tenant.peak = {claim.gpu.uuid: claim.peak for claim in claims}
        tenant.told = told  # so that what came back while there was no scheduler is told, too
        tenant.suspended_before = row.suspended_seconds
        if row.suspended_since is not None:
            tenant.waited_since = tenant.suspended_since = self._store.monotonic(row.suspended_since)
            tenant.wait_told = True
        if refused := self._containers.admit(row, tenant, running=True):
            log.error("container %s gets no more memory, but can be killed: %s", row.name, refused.explanation)
            self._containers.keep_stray(tenant)

    def _process(self, tenant: Tenant, pid: int) -> None:
        started = start_time(pid)
        # The name of a page says whose it is; the engine knows.
        if started is None or not self._engine.owns(tenant.engine_id, pid) or (fd := lease_pages.find(pid)) is None:
            return
        try:
            page = lease_pages.take_over(fd, tenant.quota)
            self._sessions.open(tenant, pid, started, os.pidfd_open(pid), page, taken_over=True)
        except (lease_pages.BadPage, ProcessLookupError) as error:
            log.warning("process %d: its lease page was not taken over: %s", pid, error)
        finally:
            os.close(fd)
