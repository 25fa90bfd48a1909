"""What can be changed about a container that lives: pauses, its quota, its priority, its part of the turns."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from django.db import Error

from scheduler.card.turns import TurnPlayer
from scheduler.containers.registry import Containers, as_problem
from scheduler.containers.swapping import Swapping
from scheduler.core.events import PriorityChanged
from scheduler.engines.base import Condition, EngineAway, EngineError, Status
from scheduler.sessions.live_containers import LiveContainer
from scheduler.shared import SharedParts
from web.errors import Problem
from web.models import Container

MAYBE = {
    Condition.PAUSED: "It may be paused nevertheless; the page shows its state once that is known.",
    Condition.RUNNING: "It may have resumed nevertheless; the page shows its state once that is known.",
}  # after an act of which nobody knows whether it was done
SHARE = ("priority", "compute_weight", "compute_limit")  # what decides on its turns


class Steering:
    """Each function does what it says, or raises Problem (or the engine's EngineError) and has changed nothing.

    But after an EngineAway nobody may know: what the engine shows then is reported as any other change is.
    `share_changed` is called with one whose part in the turns is another.
    """

    def __init__(
        self,
        shared: SharedParts,
        containers: Containers,
        swapping: Swapping,
        turns: TurnPlayer,
        share_changed: Callable[[LiveContainer], None],
    ) -> None:
        self._engine, self._store = shared.engine, shared.store
        self._broker, self._roster = shared.broker, shared.roster
        self._containers, self._swapping, self._turns = containers, swapping, turns
        self.share_changed = share_changed

    async def pause(
        self, live: LiveContainer, *, free_memory: bool = False, why: str = "", was_paused: bool = False
    ) -> str:
        """Freezes it; with `free_memory` what it has on its cards goes to host memory first. A sentence on that.

        `was_paused`: before an earlier scheduler began with this; it is so again if this is refused.
        """
        was_paused, freed = was_paused or live.paused, ""
        self._hold(live, True)  # before it is done: one that is being frozen cannot be preempted
        try:
            await self._swapping.await_move(live)
            try:
                if free_memory or live.swap:
                    if live.paused and not live.swap:
                        await self._thaw(live)  # a frozen process cannot move its memory
                    freed = " " + await self._swapping.out(live, why)
            except Exception:
                if was_paused:
                    await self._freeze(live)
                raise
            await self._freeze(live)
        finally:
            self._hold(live, False)
        return f"It is paused.{freed}"

    def _hold(self, live: LiveContainer, on: bool) -> None:
        live.pausing = on
        self._broker.update_paused(live)

    async def _freeze(self, live: LiveContainer) -> None:
        async with self._turns.away(live.id, "freezing"):  # a frozen process cannot be let go
            if not live.killed:
                await self._bring_about(Condition.PAUSED, live, self._engine.pause)
                if live.killed:  # meanwhile; its own thaw may have been too early
                    with contextlib.suppress(EngineError):
                        await self._engine.resume(live.engine_id)
            if live.killed:  # in its grace it is to run
                raise EngineError(f'"{live.name}" is being ended.')
            self._containers.seen(Status(live.id, live.engine_id, Condition.PAUSED))
            self.share_changed(live)

    async def _thaw(self, live: LiveContainer) -> None:
        await self._bring_about(Condition.RUNNING, live, self._engine.resume)
        self._containers.seen(Status(live.id, live.engine_id, Condition.RUNNING))
        self.share_changed(live)

    async def _bring_about(self, wanted: Condition, live: LiveContainer, act: Callable[[str], Awaitable[None]]) -> None:
        """An engine that answers too late may have done it all the same: what is seen then is the answer."""
        try:
            await act(live.engine_id)
        except EngineAway as error:
            try:
                statuses = await self._engine.statuses()
            except EngineError:
                raise EngineAway(f"{error} {MAYBE[wanted]}") from error
            if not any(each.id == live.id and each.condition is wanted for each in statuses):
                raise

    async def resume(self, live: LiveContainer) -> str:
        """Lets it go on: at once, or when there is room for what was swapped out."""
        failed = live.not_restored
        if live.paused or not live.swap:  # what gave way is not frozen
            await self._thaw(live)
        await self._swapping.await_move(live)
        self._swapping.resume(live)
        if failed:
            return f"Its GPU memory is brought back once more, if the driver can do it now. Before: {failed}"
        return "It continues when its memory is back on its GPU." if live.swap else "It goes on."

    async def move(self, live: LiveContainer, gpu: str, leaves: str, why: str) -> str:
        """To another card of its host; `leaves` names the one that it leaves, if it has several. A sentence."""
        if not (old := leaves or (next(iter(live.quota)) if len(live.quota) == 1 else "")):
            raise Problem("invalid", f'"{live.name}" has several GPUs: name the one that it leaves.', 400, "leaves")
        return await self.move_off(live, old, gpu, why)

    async def move_off(self, live: LiveContainer, old: str, new: str, why: str) -> str:
        """The same of the card `old`."""
        said = await self._swapping.cards.to_card(live, old, new, why, self._swapping.leave_card)
        self.share_changed(live)
        return said

    async def change(self, row: Container, live: LiveContainer, settings: Mapping[str, Any]) -> None:
        """Another quota (`gpu_memory`, bytes on each GPU), `priority`, `compute_weight` or `compute_limit` (percent).

        What is refused leaves them as they were.
        """
        if (size := settings.get("gpu_memory")) is not None:
            await self._change_quota(row, live, size)
        if (priority := settings.get("priority")) is not None:
            across = bool(settings.get("across"))
            if refused := self._broker.ask(PriorityChanged(self._broker.now(), live.id, priority, across)):
                raise as_problem(refused, field="priority")
            self._store.container(live.id, priority_across=across)
        if share := {name: settings[name] for name in SHARE if name in settings}:
            for name, value in share.items():
                setattr(live, name, value)
            self._store.container(live.id, **share)
            self.share_changed(live)

    async def _change_quota(self, row: Container, live: LiveContainer, size: int) -> None:
        self._engine.require_within(live.id, size)
        before, wanted = dict(live.quota), dict.fromkeys(live.quota, size)
        try:
            if size > min(before.values(), default=size):
                # Looked at when it was asked for, too, but something else may have been given to the owner since.
                await self._store.promises.make(row, wanted, within_allowance=True)
            self._change_if_it_lives(row, live, wanted)
        except (Problem, Error):
            for gpu, quota in before.items():
                self._store.claim(live.id, gpu, quota=quota)
            raise
        self._store.container(live.id, gpu_memory=size)
        for gpu, quota in before.items():
            self._store.claim(live.id, gpu, quota=size)
            self._store.event("quota", live.id, gpu=gpu, size=size, detail=f"{quota} to {size} bytes")

    def _change_if_it_lives(self, row: Container, live: LiveContainer, wanted: Mapping[str, int]) -> None:
        if live.finished:
            raise Problem("container_ended", f'"{row.name}" has ended.', 409)
        if refused := self._roster.change_quota(live, wanted):
            raise as_problem(refused, field="gpu_memory")
