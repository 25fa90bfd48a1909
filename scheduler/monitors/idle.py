"""Finds containers that hold VRAM while their GPUs do nothing for them; marks them, and does more if configured.

The core is told as well, before they count as idle: who gives way to those who wait is its decision.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError

from scheduler.containers.intents import Intents
from scheduler.core import events
from scheduler.gpus import Reading
from scheduler.sessions.broker import Broker
from scheduler.sessions.tenants import Tenant
from scheduler.store import Store
from web.models import Container
from web.services import warning

log = logging.getLogger(__name__)

TOLD_AFTER = 10.0  # seconds without computing


class Idle:
    """`GPUSHARE_IDLE_MINUTES` without computing make a holder idle.

    `held_back` tells whether a container is locked until its turn.

    `GPUSHARE_IDLE_ACTION` is `mark`, `notify` (its owner sees a warning on every page for a day) or `pause`.
    """

    def __init__(self, intents: Intents, broker: Broker, store: Store, held_back: Callable[[str], bool]) -> None:
        self._intents, self._held_back, self._broker, self._store = intents, held_back, broker, store
        self._since: dict[str, float] = {}
        self._told: set[str] = set()  # to the core: they compute nothing
        self._marking: dict[str, asyncio.Task[None]] = {}

    async def look(self, readings: Mapping[str, Reading]) -> None:
        tenants = self._broker.tenants
        self._since = {id_: since for id_, since in self._since.items() if id_ in tenants}
        self._told &= self._since.keys()
        for tenant in list(tenants.values()):
            if tenant.swap:
                self._since.pop(tenant.id, None)  # activity.py looks at these
                self._unmark(tenant)
            elif self._is_working(tenant, readings):
                self._since.pop(tenant.id, None)
                self._tell_working(tenant)
                self._unmark(tenant)
            elif tenant.paused:
                self._since.pop(
                    tenant.id, None
                )  # a paused container cannot compute: its time begins anew when it is resumed
                self._tell_working(tenant)
            else:
                since = self._since.setdefault(tenant.id, self._broker.now())
                seconds = self._broker.now() - since
                self._tell_idle(tenant, since)
                if seconds >= 60 * settings.GPUSHARE_IDLE_MINUTES and not tenant.idle:
                    self._begin_to_mark(tenant, seconds)

    def _tell_idle(self, tenant: Tenant, since: float) -> None:
        now, enough = self._broker.now(), min(TOLD_AFTER, self._broker.state.preemption.idle)
        if tenant.id not in self._told and now - since >= enough:
            self._told.add(tenant.id)
            self._broker.tell(events.Idle(now, tenant.id, since))

    def _tell_working(self, tenant: Tenant) -> None:
        if tenant.id in self._told:
            self._told.discard(tenant.id)
            self._broker.tell(events.ActivityDetected(self._broker.now(), tenant.id))

    def _is_working(self, tenant: Tenant, readings: Mapping[str, Reading]) -> bool:
        """Also true where it cannot be known: idle is only who certainly does not compute."""
        if tenant.finished or tenant.suspended_since is not None or not settings.GPUSHARE_IDLE_MINUTES:
            return True
        if self._held_back(tenant.id):
            return True
        held = [gpu for gpu in tenant.quota if tenant.used(gpu)]
        pids = tenant.pids_lately(self._broker.now())
        loads = [readings[gpu].computed(pids) for gpu in held if gpu in readings]
        return not loads or any(load is None or load > 0 for load in loads)

    def _begin_to_mark(self, tenant: Tenant, seconds: float) -> None:
        """Beside the look, which is a part of the measuring: that does not wait for the database."""
        if tenant.id not in self._marking:
            task = self._marking[tenant.id] = asyncio.create_task(self._mark(tenant, seconds))
            task.add_done_callback(lambda _: self._marking.pop(tenant.id))

    async def _mark(self, tenant: Tenant, seconds: float) -> None:
        why = f"It holds VRAM and has not computed for {seconds / 60:.0f} min."
        tenant.idle = True  # until a look finds it computing: a pause that is carried out after that is refused
        try:
            # The audit log takes what people and the appliance do from the appliance's own host alone.
            if settings.GPUSHARE_IDLE_ACTION == "notify" and not settings.GPUSHARE_AUDIT_KEY:
                await self._store.ask(_warn, tenant.id)
            elif settings.GPUSHARE_IDLE_ACTION == "pause":
                await self._intents.pause(tenant, why)
        except DatabaseError as error:
            log.warning("container %s is idle; what is to follow is tried again: %s", tenant, error)
            tenant.idle = False
            return
        if tenant.finished or not tenant.idle:
            return  # meanwhile
        self._store.container(tenant.id, idle_since=self._store.clocks.now(tenant.id) - timedelta(seconds=seconds))
        self._store.event("idle", tenant.id, detail=why)

    def _unmark(self, tenant: Tenant) -> None:
        if tenant.idle:
            tenant.idle = False
            self._store.container(tenant.id, idle_since=None)


def _warn(container: str) -> None:
    warning.tell_owner("gpushare", Container.objects.select_related("owner").get(pk=container))
