"""The containers that live, and what the engine sees of them: the start, pauses and the end of each.

Whatever the engine sees is what is so, whoever brought it about. Those who act on a container (launch.py, steering.py,
ending.py) do it by the engine and then tell what they have seen of it here, as the engine itself does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from scheduler.containers.removal import Removal
from scheduler.core.events import ContainerAdded, ContainerKilled, Reason, Refused
from scheduler.engines.base import SIGKILLED, Condition, Sighting
from scheduler.engines.host_memory import HostMemory
from scheduler.sessions.tenants import Tenant
from scheduler.shared import SharedParts
from web.errors import Problem
from web.logs import ById
from web.models import Container, Shortage
from web.models.states import NOT_STANDING

log = logging.getLogger(__name__)

STATUS = {Reason.INVALID: 400, Reason.OVER_CAPACITY: 400, Reason.UNKNOWN: 404}


class Containers:
    def __init__(self, shared: SharedParts, removal: Removal, memory: HostMemory) -> None:
        self._engine, self._store, self._server = shared.engine, shared.store, shared.server
        self._broker, self._roster = shared.broker, shared.roster
        self._removal, self._memory = removal, memory
        self._strays: dict[str, Tenant] = {}  # they live, on GPUs that this host does not have any more

    def find(self, id_: str) -> Tenant | None:
        return self._broker.tenants.get(id_) or self._strays.get(id_)

    def all(self) -> list[Tenant]:
        return [*self._broker.tenants.values(), *self._strays.values()]

    def admit(self, row: Container, tenant: Tenant, *, running: bool = False) -> Refused | None:
        """Tells the broker and the core of it. Returns their refusal, or None."""
        self._store.clocks.begin(tenant.id)
        refused = self._roster.add(
            tenant,
            ContainerAdded(
                self._broker.now(),
                tenant.id,
                tenant.quota,
                owner=row.owner.get_username(),
                priority=row.priority,
                guaranteed=row.guaranteed,
                fail_fast=row.on_shortage == Shortage.FAIL,
                max_wait=row.max_wait_seconds,
                paused=tenant.is_held,
                preemptible=row.give_way,
                running=running,
            ),
        )
        if refused and not running:
            self._store.clocks.forget(tenant.id)
        return refused

    def keep_stray(self, tenant: Tenant) -> None:
        """It gets no more memory, but can be seen and killed."""
        self._strays[tenant.id] = tenant

    async def reconcile(self) -> list[str]:
        """Compares what we know with what the engine knows; returns whom it knows. Raises EngineAway."""
        launched = [tenant for tenant in self.all() if tenant.engine_id]
        sightings = {sighting.id: sighting for sighting in await self._engine.sightings()}
        for sighting in self._engine.untold():  # how one ended that is gone by now
            self.told(sighting)
        for tenant in launched:
            self.told(sightings.get(tenant.id) or Sighting(tenant.id, tenant.engine_id, Condition.GONE))
        return list(sightings)

    def told(self, sighting: Sighting) -> None:
        """By the engine, and only once: one that cannot be taken in waits for `reconcile`, and holds nobody up."""
        try:
            self.seen(sighting)
        except Exception:
            log.exception("what the engine shows of container %s cannot be taken in", ById(sighting.id))

    def seen(self, sighting: Sighting) -> None:
        tenant = self.find(sighting.id)
        if tenant is None or tenant.finished or tenant.called_off:
            return
        if tenant.started_at is None and sighting.condition is not Condition.GONE:
            self._started(tenant, sighting)
        if sighting.condition in (Condition.ENDED, Condition.GONE):
            self._ended(tenant, sighting)
        elif tenant.killed:
            pass  # it is stopped or thawed for its end, and perhaps by an earlier scheduler: neither pause nor resume
        elif sighting.condition is Condition.PAUSED and not tenant.paused:
            self._paused(tenant)
        elif sighting.condition is Condition.RUNNING and tenant.paused:
            self._resumed(tenant)

    def _started(self, tenant: Tenant, sighting: Sighting) -> None:
        tenant.engine_id = sighting.engine_id
        tenant.started_at = self._store.clocks.by(tenant.id, sighting.started_at)
        self._store.container(
            tenant.id, engine=self._engine.name, engine_id=tenant.engine_id, started_at=tenant.started_at
        )
        for gpu, quota in tenant.quota.items():
            self._store.event("started", tenant.id, gpu=gpu, size=quota)

    def _paused(self, tenant: Tenant) -> None:
        tenant.paused = True
        self._broker.update_paused(tenant)
        self._store.container(tenant.id, paused_at=self._store.clocks.now(tenant.id))
        self._store.event("paused", tenant.id)

    def _resumed(self, tenant: Tenant) -> None:
        tenant.paused = False
        self._broker.update_paused(tenant)
        self._store.container(tenant.id, paused_at=None)
        self._store.event("unpaused", tenant.id)

    def _ended(self, tenant: Tenant, sighting: Sighting) -> None:
        reason = tenant.reason or self._reason(tenant, sighting)
        self._broker.tell(ContainerKilled(self._broker.now(), tenant.id))
        # Nobody is charged for the time until a scheduler sees the end: it may have been away.
        now = self._store.clocks.now(tenant.id)
        at = min(max(self._store.clocks.by(tenant.id, sighting.finished_at), tenant.started_at or now), now)
        self._store.container(
            tenant.id,
            finished_at=at,
            exit_code=sighting.exit_code,
            **NOT_STANDING,
            reason=reason[:500],
            **({"removed_at": now} if sighting.condition is Condition.GONE else {}),
        )
        exit_code = "" if sighting.exit_code is None else f"exit code {sighting.exit_code}"
        self._store.event("ended", tenant.id, detail=reason or exit_code, at=at)
        self.forget(tenant)
        tenant.end.set()
        if tenant.remove_when_done and sighting.condition is Condition.ENDED:
            self._removal.begin(tenant.id, tenant.engine_id)

    def _reason(self, tenant: Tenant, sighting: Sighting) -> str:
        """Why it ended, where nobody here gave a reason: what the engine says, or what its exit code suggests."""
        if sighting.condition is Condition.GONE:
            return sighting.reason or "It was removed outside of this appliance."
        if tenant.killed or sighting.reason or sighting.exit_code != SIGKILLED:
            return sighting.reason
        if self._memory.may_have_ended_somebody():
            return "It was ended by a SIGKILL while the kernel ended a process for lack of host memory: this, probably."
        return "It was ended by a SIGKILL that this appliance did not send."

    def forget(self, tenant: Tenant) -> None:
        """It has ended, or was never started."""
        self._server.shut(tenant.id)
        self._roster.end(tenant)
        self._strays.pop(tenant.id, None)


def as_tenant(row: Container, quota: Mapping[str, int]) -> Tenant:
    """`quota`: bytes by GPU."""
    return Tenant(
        str(row.pk),
        row.name,
        dict(quota),
        row.owner.username,
        ttl=row.ttl_seconds,
        remove_when_done=row.remove_when_done,
        priority=row.priority,
        compute_weight=row.compute_weight,
        compute_limit=row.compute_limit,
    )


def as_problem(refused: Refused, field: str = "") -> Problem:
    if refused.reason is Reason.OVER_CAPACITY:
        field = "gpu_memory"
    return Problem(refused.reason.value, refused.explanation, STATUS.get(refused.reason, 409), field)
