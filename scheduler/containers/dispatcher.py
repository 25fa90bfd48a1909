"""Dispatcher launches to a placer (scheduler/engines/placer.py), and following each until a host has it.

    handed    the record says so: `engine` is the placer's name; Swarm waits, or not, and says why
    taken     Docker mounts its volume on some host, whose scheduler makes the record its own (scheduler/plugin/)
    ended     seen by that host as the end of every other container; then the order is taken back here

So what a manager cannot do, pause, kill, show the output of what runs elsewhere, it is never asked: the record is that
node's by then. What never came to a host ends here, with the placer's own words. Each step can be made again: the
order is named by our id, and every look compares what the records mean with what the placer has.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import DatabaseError

from scheduler import clock
from scheduler.containers import placement
from scheduler.containers.intents import was_called_off
from scheduler.containers.launch import asked_of, called_off
from scheduler.engines.asked import untaken
from scheduler.engines.base import Engine, EngineAway, EngineError, Progress
from scheduler.engines.placer import TAKES, Host, Order, Placer, Stage, Standing
from scheduler.engines.runtime_environment import MOVABLE
from scheduler.store import Store, event_log, pending_placements
from web.errors import Problem
from web.logs import ById
from web.models import AllocationEvent, Container
from web.services.placement import sites
from web.services.placement.policies import Wish
from web.spec import quotas, restarts

log = logging.getLogger(__name__)
Kind = AllocationEvent.Kind

LOOK_EVERY = 1.5  # seconds
LONGEST = 500  # characters of a reason that a record has room for
HAS_IT = "A node has it."
# What the Swarm has of it has a key that nobody knows any more.
GIVEN_UP = "The scheduler ended before the Swarm answered. Launch it again."


class CameToANode(Exception):
    """A host has it by now, and it is that one's."""


class Dispatcher:
    def __init__(self, placer: Placer, engine: Engine, store: Store) -> None:
        self._placer, self._engine, self._store = placer, engine, store
        self._choosing = asyncio.Lock()  # who comes next sees what was chosen

    async def launch(self, row: Container, progress: Progress | None) -> str:
        """What was done, in a sentence. Raises Problem, EngineError or DatabaseError, and no host has it, or can."""
        try:
            return await self._hand(row, progress)
        except Exception:
            if await self.came_to_a_node(row):
                return HAS_IT
            raise

    async def came_to_a_node(self, row: Container) -> bool:
        """Of one that failed, or was broken off: whether a host has it all the same. If not, none can from now on.

        It may have been asked for before, by a scheduler that died over that. Until the database says which it is,
        nothing is reported: what is reported as refused would run there.
        """
        while True:
            try:
                return not await self._change(str(row.pk), handed="")
            except DatabaseError as error:
                log.warning("whether a node has container %s is asked later: %s", ById(str(row.pk)), error)
                await asyncio.sleep(LOOK_EVERY)

    async def _hand(self, row: Container, progress: Progress | None) -> str:
        if was_called_off(row):
            raise called_off()
        if self.has(row) and not row.handed:
            raise Problem("engine_away", GIVEN_UP, 503)
        if field := untaken(row, TAKES):
            message = (
                f"Swarm chooses the host, and {field} cannot be used. Name the node (--node) to launch there "
                "without the Swarm."
            )
            raise Problem("not_supported", message, 400, field)
        if row.restart and row.remove_when_done:
            raise Problem(
                "invalid",
                "A container that is restarted is not removed when it ends: choose one of the two.",
                400,
                "restart",
            )
        size = row.gpu_memory or quotas.of_image(await self._engine.image_labels(row.image, progress))
        async with self._choosing:
            return await self._give(row, size)

    async def _give(self, row: Container, size: int) -> str:
        drained = await self._store.ask(pending_placements.drained_cards)
        found = [host.without(drained.get(host.name, ())) for host in await self._placer.hosts()]
        hosts = placement.as_asked(found, row.constraints)
        wanted = await self._store.ask(pending_placements.numbers, row.gpu_uuids) if row.gpu_uuids else {}
        host, cards = placement.choose_host(hosts, size, row.gpu_count, wanted)
        why = ""
        if not host and (better := await self._better(hosts, row, size)):
            host, cards, why = better
        key = row.handed or secrets.token_urlsafe(24)  # one that died over this may have asked with the first
        # Before it is asked for: a host may have it a moment after.
        if not await self._change(str(row.pk), engine=self._placer.name, handed=key, node_reason=why[:LONGEST]):
            return HAS_IT  # a scheduler did this and died before it could say so
        environment = {**row.environment, **(MOVABLE if row.movable else {}), "GPUSHARE_MEMORY_LIMIT": str(size)}
        given = {**asked_of(row), "environment": environment, "restart": restarts.parse(row.restart)}
        await self._placer.submit(
            Order(quota=size, cards=cards, key=key, host=host, constraints=row.constraints, **given)
        )
        return "Swarm has it: it starts on a node as soon as one has room."

    async def _better(self, hosts: Sequence[Host], row: Container, size: int) -> tuple[str, list[int], str] | None:
        """By what the appliance knows, of the hosts that have room now: one that has none is not waited for."""
        with_room = {host.name: host for host in hosts if host.there and placement.has_room(host, size, row.gpu_count)}
        labels = {name: host.labels for name, host in with_room.items()}
        if not sites.tells_a_swarm() or len(labels) < 2:
            return None
        wish = Wish(size, row.gpu_count, tuple(row.constraints), row.owner.get_username(), row.ttl_seconds)
        choice = await self._store.ask(sites.among, labels, wish)
        if choice is None:
            return None
        return choice.node, placement.freest(with_room[choice.node], size, row.gpu_count), choice.reason

    def has(self, row: Container) -> bool:
        """Whether it was handed over, and no host has it yet."""
        return row.engine == self._placer.name and not row.mount and row.finished_at is None

    async def call_off(self, row: Container, reason: str) -> None:
        """Of one that no host has. Raises CameToANode, EngineError or DatabaseError."""
        id_ = str(row.pk)
        recorded = row.kill_requested_at is not None  # by a scheduler that died over this
        if not recorded and not await self._record(Kind.KILLED, id_, reason, "kill_requested_at"):
            raise CameToANode
        await self._placer.take_back(id_)
        await self._end(id_, reason)

    async def _change(self, id_: str, **fields: Any) -> bool:
        """Whether no host has it, so that it was changed. Raises DatabaseError."""
        return await self._store.write(pending_placements.change, id_, fields)

    async def _record(self, kind: AllocationEvent.Kind, id_: str, reason: str, *times: str) -> bool:
        """As `pending_placements.happen`. Raises DatabaseError."""
        event = AllocationEvent(at=clock.now(), kind=kind, container_id=id_, detail=reason[:LONGEST])
        if happened := await self._store.write(pending_placements.happen, event, times):
            self._store.figures.event(kind, 0.0)
            await self._store.ask(event_log.tell, [event])
        return happened

    async def run(self) -> None:
        while True:
            try:
                await self._look()
            except (EngineError, DatabaseError) as error:
                log.warning("what was handed to %s cannot be looked at for now: %s", self._placer.name, error)
            await asyncio.sleep(LOOK_EVERY)

    async def _look(self) -> None:
        await self._placer.spare(await self._store.ask(pending_placements.drained))
        # First ours and then the placer's: what was handed over is there before its launch is done.
        waiting = {str(row.pk): row for row in await self._store.ask(pending_placements.all_of, self._placer.name)}
        standing = await self._placer.standing()
        steps = {id_: partial(self._follow, row, standing.get(id_)) for id_, row in waiting.items()}
        over = {id_ for id_, stands in standing.items() if stands.stage is Stage.OVER}
        for id_, had_begun in (await self._store.ask(pending_placements.ended, list(standing), over)).items():
            steps[id_] = partial(self._clear, id_, "" if had_begun else standing[id_].said)
        for id_, step in steps.items():
            try:
                await step()
            except EngineAway:
                raise
            except EngineError as error:  # the others are not to wait for that
                log.warning("container %s, which was handed to %s: %s", ById(id_), self._placer.name, error)

    async def _clear(self, id_: str, said: str) -> None:
        if said:
            await self._store.write(pending_placements.explain, id_, _not_begun(said))
        await self._placer.take_back(id_)

    async def _follow(self, row: Container, stands: Standing | None) -> None:
        id_ = str(row.pk)
        if stands is None:
            await self._end(id_, "It was removed from the Swarm outside of this appliance.")
        elif row.kill_requested_at is not None or stands.stage is Stage.OVER:
            await self._placer.take_back(id_)
            await self._end(id_, row.reason or _not_begun(stands.said))
        elif (said := stands.said[:LONGEST]) and said != row.queue_reason:
            await self._change(id_, queue_reason=said)

    async def _end(self, id_: str, reason: str) -> None:
        """It never came to a host; one that has by now reports its own end."""
        await self._record(Kind.ENDED, id_, reason, "finished_at", "removed_at")


def _not_begun(said: str) -> str:
    return f"It has not begun: {said or 'Swarm gives no reason'}"[:LONGEST]
