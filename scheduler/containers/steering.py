"""What can be changed about a container that lives: pauses, its quota, its priority, its part of the turns."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.db import Error

from scheduler.card.turns import TurnPlayer
from scheduler.containers.life import Containers, as_problem
from scheduler.containers.swapping import Swapping
from scheduler.core.events import PriorityChanged
from scheduler.engines.base import Condition, EngineAway, EngineError, Sighting
from scheduler.sessions.tenants import Tenant
from scheduler.shared import SharedParts
from web.errors import Problem
from web.models import Container

MAYBE = {
    Condition.PAUSED: "It may be paused all the same, and is shown so once that can be seen.",
    Condition.RUNNING: "It may go on all the same, and is shown so once that can be seen.",
}  # after an act of which nobody knows whether it was done
SHARE = ("priority", "compute_weight", "compute_limit")  # what decides on its turns


class Steering:
    """Each function does what it says, or raises Problem (or the engine's EngineError) and has changed nothing.

    But after an EngineAway nobody may know: what the engine shows then is told as any other change is.
    `share_changed` is called with one whose part in the turns is another.
    """

    def __init__(
        self,
        shared: SharedParts,
        containers: Containers,
        swapping: Swapping,
        turns: TurnPlayer,
        share_changed: Callable[[Tenant], None],
    ) -> None:
        self._engine, self._store = shared.engine, shared.store
        self._broker, self._roster = shared.broker, shared.roster
        self._containers, self._swapping, self._turns = containers, swapping, turns
        self.share_changed = share_changed

    async def pause(self, tenant: Tenant, *, free_memory: bool = False, why: str = "", was_paused: bool = False) -> str:
        """Freezes it; with `free_memory` what it has on its cards goes to host memory first. A sentence on that.

        `was_paused`: before an earlier scheduler began with this; it is so again if this is refused.
        """
        was_paused, freed = was_paused or tenant.paused, ""
        self._hold(tenant, True)  # before it is done: one that is being frozen cannot be preempted
        try:
            await self._swapping.await_move(tenant)
            try:
                if free_memory or tenant.swap:
                    if tenant.paused and not tenant.swap:
                        await self._thaw(tenant)  # a frozen process cannot move its memory
                    freed = " " + await self._swapping.out(tenant, why)
            except Exception:
                if was_paused:
                    await self._freeze(tenant)
                raise
            await self._freeze(tenant)
        finally:
            self._hold(tenant, False)
        return f"It is paused.{freed}"

    def _hold(self, tenant: Tenant, on: bool) -> None:
        tenant.pausing = on
        self._broker.update_paused(tenant)

    async def _freeze(self, tenant: Tenant) -> None:
        async with self._turns.away(tenant.id, "freezing"):  # a frozen process cannot be let go
            if not tenant.killed:
                await self._bring_about(Condition.PAUSED, tenant, self._engine.pause)
                if tenant.killed:  # meanwhile; its own thaw may have been too early
                    with contextlib.suppress(EngineError):
                        await self._engine.resume(tenant.engine_id)
            if tenant.killed:  # in its grace it is to run
                raise EngineError(f'"{tenant.name}" is being ended.')
            self._containers.seen(Sighting(tenant.id, tenant.engine_id, Condition.PAUSED))
            self.share_changed(tenant)

    async def _thaw(self, tenant: Tenant) -> None:
        await self._bring_about(Condition.RUNNING, tenant, self._engine.resume)
        self._containers.seen(Sighting(tenant.id, tenant.engine_id, Condition.RUNNING))
        self.share_changed(tenant)

    async def _bring_about(self, wanted: Condition, tenant: Tenant, act: Callable[[str], Awaitable[None]]) -> None:
        """An engine that answers too late may have done it all the same: what is seen then is the answer."""
        try:
            await act(tenant.engine_id)
        except EngineAway as error:
            try:
                sightings = await self._engine.sightings()
            except EngineError:
                raise EngineAway(f"{error} {MAYBE[wanted]}") from error
            if not any(each.id == tenant.id and each.condition is wanted for each in sightings):
                raise

    async def resume(self, tenant: Tenant) -> str:
        """Lets it go on: at once, or when there is room for what was swapped out."""
        failed = tenant.not_restored
        if tenant.paused or not tenant.swap:  # what gave way is not frozen
            await self._thaw(tenant)
        await self._swapping.await_move(tenant)
        self._swapping.resume(tenant)
        if failed:
            return f"Its GPU memory is brought back once more, if the driver can do it now. Before: {failed}"
        return "It goes on as soon as its memory is back on its card." if tenant.swap else "It goes on."

    async def change(self, row: Container, tenant: Tenant, settings: Mapping[str, Any]) -> None:
        """Another quota (`gpu_memory`, bytes on each GPU), `priority`, `compute_weight` or `compute_limit` (percent).

        What is refused leaves them as they were.
        """
        if (size := settings.get("gpu_memory")) is not None:
            await self._change_quota(row, tenant, size)
        if (priority := settings.get("priority")) is not None and (
            refused := self._broker.ask(PriorityChanged(self._broker.now(), tenant.id, priority))
        ):
            raise as_problem(refused, field="priority")
        if share := {name: settings[name] for name in SHARE if name in settings}:
            for name, value in share.items():
                setattr(tenant, name, value)
            self._store.container(tenant.id, **share)
            self.share_changed(tenant)

    async def _change_quota(self, row: Container, tenant: Tenant, size: int) -> None:
        self._engine.require_within(tenant.id, size)
        before, wanted = dict(tenant.quota), dict.fromkeys(tenant.quota, size)
        try:
            if size > min(before.values(), default=size):
                # Looked at when it was asked for, too, but something else may have been given to the owner since.
                await self._store.promises.make(row, wanted, within_allowance=True)
            self._change_if_it_lives(row, tenant, wanted)
        except (Problem, Error):
            for gpu, quota in before.items():
                self._store.claim(tenant.id, gpu, quota=quota)
            raise
        self._store.container(tenant.id, gpu_memory=size)
        for gpu, quota in before.items():
            self._store.claim(tenant.id, gpu, quota=size)
            self._store.event("quota", tenant.id, gpu=gpu, size=size, detail=f"{quota} to {size} bytes")

    def _change_if_it_lives(self, row: Container, tenant: Tenant, wanted: Mapping[str, int]) -> None:
        if tenant.finished:
            raise Problem("container_ended", f'"{row.name}" has ended.', 409)
        if refused := self._roster.change_quota(tenant, wanted):
            raise as_problem(refused, field="gpu_memory")
