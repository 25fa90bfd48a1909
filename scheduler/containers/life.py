"""The life of containers: launching, taking over after a restart, pausing, ending, and what the engine sees.

Each function either does what it says or raises `Problem` (or the engine's EngineError) and has changed nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from django.utils import timezone

from scheduler.containers import placement
from scheduler.containers.consoles import Consoles
from scheduler.core.events import (
    ContainerAdded,
    ContainerKilled,
    ContainerPaused,
    ContainerResumed,
    PriorityChanged,
    Reason,
    Refused,
)
from scheduler.engines.base import Condition, Engine, EngineError, Launch, Progress, Sighting
from scheduler.gpus import Gpus
from scheduler.sessions import lease_pages
from scheduler.sessions.broker import Broker
from scheduler.sessions.processes import Sessions
from scheduler.sessions.server import Server
from scheduler.sessions.tenants import Tenant, start_time
from scheduler.store import Store
from web.errors import Problem
from web.models import Container, Shortage
from web.sizes import parse_size

log = logging.getLogger(__name__)

QUOTA_LABEL = "com.nvidia.memory.limit"
DEFAULT_QUOTA = 1 << 30
KILL_SECONDS = 10.0  # from the engine's "it is dead" to its being seen as ended
STATUS = {Reason.INVALID: 400, Reason.OVER_CAPACITY: 400, Reason.UNKNOWN: 404}


class Containers:
    def __init__(
        self,
        engine: Engine,
        consoles: Consoles,
        broker: Broker,
        sessions: Sessions,
        server: Server,
        gpus: Gpus,
        store: Store,
        home: Path,
    ) -> None:
        self._engine = engine
        self._consoles = consoles
        self._broker = broker
        self._sessions = sessions
        self._server = server
        self._gpus = gpus
        self._store = store
        self._logs = home / "logs"
        self._removals: set[asyncio.Task[None]] = set()
        self._strays: dict[str, Tenant] = {}  # they live, on GPUs that this host does not have any more

    def find(self, id_: str) -> Tenant | None:
        return self._broker.tenants.get(id_) or self._strays.get(id_)

    def _all(self) -> list[Tenant]:
        return [*self._broker.tenants.values(), *self._strays.values()]

    # ---- launching ----

    async def launch(self, row: Container, progress: Progress | None = None) -> None:
        """`progress` is told, from any thread, how far the fetching of the image is."""
        if row.started_at is not None:
            return  # a scheduler did this and died before it could say so; this one has taken the container over
        # A scheduler that died over this launch may have started it, with the GPUs that it had promised.
        promised = await self._store.promised(row) if row.node_id is not None else {}
        tenant = _tenant(row, promised or await self._place(row, progress))
        if refused := self._broker.add(tenant, self._added(row, tenant)):
            raise _problem(refused)
        try:
            if not promised:
                # A quota by label is known only now, so the owner's allowance is looked at only now, too.
                await self._store.promise(row, tenant.quota, within_allowance=row.gpu_memory is None)
            socket_dir = self._server.listen(tenant.id)
            sighting = await self._engine.launch(self._launch(row, tenant, socket_dir), progress)
        except asyncio.CancelledError:
            raise  # the scheduler stops: the same launch is taken up again at its next start
        except BaseException:
            self.abandon(tenant)
            raise
        self._store.container(tenant.id, engine=self._engine.name)
        self.seen(sighting)
        if row.interactive or row.tty:
            try:
                await self._consoles.hold(tenant.id, sighting.engine_id)
            except EngineError as error:  # it runs, and can be attached to later
                log.warning("container %s: its console: %s", row.name, error)

    async def _place(self, row: Container, progress: Progress | None) -> dict[str, int]:
        """Bytes of quota on each of the GPUs that it gets."""
        size = row.gpu_memory or await self._quota_of(row.image, progress)
        gpus: list[str] = row.gpu_uuids or placement.choose(self._broker.state, row.gpu_count, size)
        gpus = sorted(gpus, key=lambda gpu: card.index if (card := self._gpus.cards.get(gpu)) else -1)
        return dict.fromkeys(gpus, size)

    async def _quota_of(self, image: str, progress: Progress | None) -> int:
        label = (await self._engine.image_labels(image, progress)).get(QUOTA_LABEL)
        if label is None:
            return DEFAULT_QUOTA
        try:
            return parse_size(label)
        except ValueError as error:
            message = f"The image's label {QUOTA_LABEL} cannot be used: {error} Give gpu_memory."
            raise Problem("bad_label", message, 400, "gpu_memory") from None

    def _added(self, row: Container, tenant: Tenant, *, running: bool = False) -> ContainerAdded:
        return ContainerAdded(
            self._broker.now(),
            tenant.id,
            tenant.quota,
            owner=row.owner.get_username(),
            priority=row.priority,
            guaranteed=row.guaranteed,
            fail_fast=row.on_shortage == Shortage.FAIL,
            max_wait=row.max_wait_seconds,
            paused=tenant.paused,
            running=running,
        )

    def _launch(self, row: Container, tenant: Tenant, socket_dir: Path) -> Launch:
        smallest = min(tenant.quota, key=lambda gpu: tenant.quota[gpu])
        fraction = tenant.quota[smallest] / self._gpus.cards[smallest].total
        return Launch(
            id=tenant.id,
            name=row.name,
            image=row.image,
            command=row.command,
            gpus=list(tenant.quota),
            socket_dir=socket_dir,
            log_path=self._logs / f"{tenant.id}.log",
            environment={
                **row.environment,
                "GPUSHARE_MEMORY_LIMIT": str(tenant.quota[smallest]),
                "GPUSHARE_MEMORY_FRACTION": f"{fraction:.6f}",
            },
            memory=row.memory,
            cpus=row.cpus,
            volumes=row.volumes,
            ports=row.ports,
            interactive=row.interactive,
            tty=row.tty,
            owner=row.owner.get_username(),
        )

    def abandon(self, tenant: Tenant) -> None:
        """A launch came to nothing: as if it had never been."""
        self._server.shut(tenant.id)
        self._broker.end(tenant)

    async def ids_in_engine(self) -> list[str]:
        return [sighting.id for sighting in await self._engine.sightings()]

    async def abort(self, id_: str) -> None:
        """A launch was broken off at an unknown point; nothing of it may stay."""
        try:
            for sighting in await self._engine.sightings():
                if sighting.id == id_:
                    await self._engine.kill(sighting.engine_id)
                    await self._engine.remove(sighting.engine_id)
        finally:
            if tenant := self._broker.tenants.get(id_):
                self.abandon(tenant)

    # ---- taking over ----

    async def take_over(self) -> None:
        """After a restart: everything that lives, as it is, before any socket is open."""
        rows = [row for row in await self._store.living() if row.started_at is not None]
        told = await self._store.told()
        for row in rows:
            self._take_over(row, told.get(str(row.pk), {}))
        for pid, container in await asyncio.to_thread(lease_pages.holders):
            if tenant := self._broker.tenants.get(container):
                self._take_over_process(tenant, pid)
        await self.reconcile()
        for tenant in list(self._broker.tenants.values()):
            self._server.listen(tenant.id)

    def _take_over(self, row: Container, told: dict[str, int]) -> None:
        claims = [claim for claim in row.claims.all() if claim.gpu.uuid in self._gpus.cards]
        tenant = _tenant(row, {claim.gpu.uuid: claim.quota for claim in claims})
        tenant.engine_id = row.engine_id
        tenant.started_at = row.started_at
        tenant.paused = row.paused_at is not None
        tenant.idle = row.idle_since is not None
        tenant.killed = row.kill_requested_at is not None
        tenant.peak = {claim.gpu.uuid: claim.peak for claim in claims}
        tenant.told = told  # so that what came back while there was no scheduler is told, too
        tenant.suspended_before = row.suspended_seconds
        if row.suspended_since is not None:
            tenant.waited_since = tenant.suspended_since = self._store.monotonic(row.suspended_since)
            tenant.wait_told = True
        if refused := self._broker.add(tenant, self._added(row, tenant, running=True)):
            log.error("container %s gets no more memory, but can be killed: %s", row.name, refused.explanation)
            self._strays[tenant.id] = tenant

    def _take_over_process(self, tenant: Tenant, pid: int) -> None:
        started, fd = start_time(pid), lease_pages.find(pid)
        if fd is None:
            return
        try:
            # The name of a page says whose it is; the engine knows.
            if started is not None and self._engine.owns(tenant.engine_id, pid):
                page = lease_pages.take_over(fd, list(tenant.quota))
                self._sessions.open(tenant, pid, started, os.pidfd_open(pid), page, taken_over=True)
        except (lease_pages.BadPage, ProcessLookupError) as error:
            log.warning("process %d: its lease page was not taken over: %s", pid, error)
        finally:
            os.close(fd)

    async def reconcile(self) -> None:
        """Compares what we know with what the engine knows. Raises EngineAway."""
        launched = [tenant for tenant in self._all() if tenant.engine_id]
        sightings = {sighting.id: sighting for sighting in await self._engine.sightings()}
        for tenant in launched:
            self.seen(sightings.get(tenant.id) or Sighting(tenant.id, tenant.engine_id, Condition.GONE))

    # ---- what the engine sees ----

    def seen(self, sighting: Sighting) -> None:
        """Whatever the engine sees is what is so, whoever brought it about."""
        tenant = self.find(sighting.id)
        if tenant is None or tenant.finished:
            return
        if tenant.started_at is None and sighting.condition is not Condition.GONE:
            self._started(tenant, sighting)
        if sighting.condition is Condition.PAUSED and not tenant.paused:
            self._paused(tenant)
        elif sighting.condition is Condition.RUNNING and tenant.paused:
            self._resumed(tenant)
        elif sighting.condition in (Condition.ENDED, Condition.GONE):
            self._ended(tenant, sighting)

    def _started(self, tenant: Tenant, sighting: Sighting) -> None:
        tenant.engine_id = sighting.engine_id
        tenant.started_at = _wall(sighting.started_at)
        self._store.container(
            tenant.id, engine=self._engine.name, engine_id=tenant.engine_id, started_at=tenant.started_at
        )
        for gpu, quota in tenant.quota.items():
            self._store.event("started", tenant.id, gpu=gpu, size=quota)

    def _paused(self, tenant: Tenant) -> None:
        tenant.paused = True
        self._broker.tell(ContainerPaused(self._broker.now(), tenant.id))
        self._store.container(tenant.id, paused_at=timezone.now())
        self._store.event("paused", tenant.id)

    def _resumed(self, tenant: Tenant) -> None:
        tenant.paused = False
        self._broker.tell(ContainerResumed(self._broker.now(), tenant.id))
        self._store.container(tenant.id, paused_at=None)
        self._store.event("unpaused", tenant.id)

    def _ended(self, tenant: Tenant, sighting: Sighting) -> None:
        reason = sighting.reason
        if sighting.condition is Condition.GONE:
            reason = reason or "It was removed outside of this appliance."
        self._broker.tell(ContainerKilled(self._broker.now(), tenant.id))
        # Nobody is charged for the time until a scheduler sees the end: it may have been away.
        now = timezone.now()
        at = min(max(_wall(sighting.finished_at), tenant.started_at or now), now)
        self._store.container(
            tenant.id,
            finished_at=at,
            exit_code=sighting.exit_code,
            paused_at=None,
            reason=(tenant.reason or reason)[:500],
            **({"removed_at": timezone.now()} if sighting.condition is Condition.GONE else {}),
        )
        exit_code = "" if sighting.exit_code is None else f"exit code {sighting.exit_code}"
        self._store.event("ended", tenant.id, detail=tenant.reason or reason or exit_code, at=at)
        self._server.shut(tenant.id)
        self._broker.end(tenant)
        self._strays.pop(tenant.id, None)
        tenant.end.set()
        if tenant.remove_when_done and sighting.condition is Condition.ENDED:
            task = asyncio.create_task(self._remove_quietly(tenant.id, tenant.engine_id))
            self._removals.add(task)
            task.add_done_callback(self._removals.discard)

    async def _remove_quietly(self, id_: str, engine_id: str) -> None:
        try:
            await self._remove(id_, engine_id)
        except EngineError as error:
            log.warning("container %s has ended but cannot be removed: %s", id_, error)

    # ---- steering ----

    async def pause(self, tenant: Tenant) -> None:
        await self._engine.pause(tenant.engine_id)
        self.seen(Sighting(tenant.id, tenant.engine_id, Condition.PAUSED))

    async def resume(self, tenant: Tenant) -> None:
        await self._engine.resume(tenant.engine_id)
        self.seen(Sighting(tenant.id, tenant.engine_id, Condition.RUNNING))

    async def kill(self, tenant: Tenant, *, grace: float = 0.0, reason: str = "") -> None:
        """Ends it and waits for that. Its waiting calls are rejected at once."""
        tenant.killed = True
        tenant.reason = reason
        self._store.container(tenant.id, kill_requested_at=timezone.now())
        self._store.event("killed", tenant.id, detail=reason)
        self._broker.tell(ContainerKilled(self._broker.now(), tenant.id))
        try:
            await self._engine.kill(tenant.engine_id, grace=grace)
        except EngineError:
            tenant.kill_failed = True  # it is given no more memory: it is not left like that
            raise
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await tenant.end.wait()
        except TimeoutError:
            raise Problem("still_running", "It was killed, but the engine still shows it running.", 409) from None

    async def kill_again(self) -> None:
        """Those that the engine did not kill when it was told to."""
        for tenant in [tenant for tenant in self._all() if tenant.kill_failed and not tenant.finished]:
            try:
                await self._engine.kill(tenant.engine_id)
                tenant.kill_failed = False
            except EngineError as error:
                log.warning("container %s has still not been killed: %s", tenant.name, error)

    async def remove(self, row: Container) -> None:
        if row.engine_id:
            await self._remove(str(row.pk), row.engine_id)
        else:
            self._store.container(str(row.pk), removed_at=timezone.now())

    async def _remove(self, id_: str, engine_id: str) -> None:
        await self._engine.remove(engine_id)
        self._store.container(id_, removed_at=timezone.now())

    async def change(self, row: Container, tenant: Tenant, settings: Mapping[str, int]) -> None:
        """Another quota (`gpu_memory`, bytes on each GPU) or `priority`; what is refused leaves both as they were."""
        if (size := settings.get("gpu_memory")) is not None:
            await self._change_quota(row, tenant, size)
        if (priority := settings.get("priority")) is not None:
            if refused := self._broker.ask(PriorityChanged(self._broker.now(), tenant.id, priority)):
                raise _problem(refused, field="priority")
            self._store.container(tenant.id, priority=priority)

    async def _change_quota(self, row: Container, tenant: Tenant, size: int) -> None:
        before, wanted = dict(tenant.quota), dict.fromkeys(tenant.quota, size)
        if size > min(before.values(), default=size):
            # Looked at when it was asked for, too, but something else may have been given to the owner since.
            await self._store.promise(row, wanted, within_allowance=True)
        if refused := self._broker.change_quota(tenant, wanted):
            for gpu, quota in before.items():
                self._store.claim(tenant.id, gpu, quota=quota)
            raise _problem(refused, field="gpu_memory")
        self._store.container(tenant.id, gpu_memory=size)
        for gpu, quota in before.items():
            self._store.claim(tenant.id, gpu, quota=size)
            self._store.event("quota", tenant.id, gpu=gpu, size=size, detail=f"{quota} to {size} bytes")


def _tenant(row: Container, quota: dict[str, int]) -> Tenant:
    return Tenant(str(row.pk), row.name, quota, ttl=row.ttl_seconds, remove_when_done=row.remove_when_done)


def _problem(refused: Refused, field: str = "") -> Problem:
    if refused.reason is Reason.OVER_CAPACITY:
        field = "gpu_memory"
    return Problem(refused.reason.value, refused.explanation, STATUS.get(refused.reason, 409), field)


def _wall(seconds: float | None) -> datetime:
    return timezone.now() if seconds is None else datetime.fromtimestamp(seconds, UTC)
