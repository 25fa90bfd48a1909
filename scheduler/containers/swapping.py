"""Moves what a container has on its cards to the host's memory, and back.

Out: its limit of host memory is raised (the image counts as the programs' own), idle headroom is taken back, each of
its processes that holds any of a card is locked and its memory moved. Then the core has it all back, and others may be
given it. If any of that fails, what was done is undone, and nothing has changed.

Back: the core lends it all that it had, like to any newcomer, and only then is it moved to the cards and unlocked.

How far it is stands in the container's row before each step (`Swap`), and what each process is in is asked of the
driver; so whoever takes over brings it to its end. One transfer at a time: two would take twice as long each.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from django.db import DatabaseError
from django.utils import timezone

from scheduler.card.helper import CardError, CardHelper, State, Why
from scheduler.core.admission import size
from scheduler.core.events import ContainerPaused, ContainerResumed, Returned
from scheduler.engines.base import Engine, EngineError
from scheduler.sessions.broker import Broker
from scheduler.sessions.tenants import Session, Tenant
from scheduler.store import Store
from web.errors import Problem
from web.models import Command, Swap

log = logging.getLogger(__name__)

LOCK_SECONDS = 30.0  # in which what a process has given to its card must be done
SLOWEST = 256 << 20  # bytes a second; a transfer that is slower has hung
GRACE = 30.0  # seconds more
ATTEMPTS = 6  # steps between any two states, and as many again
AGAIN = 5.0  # seconds until what could not be brought back is tried again
MEMINFO = Path("/proc/meminfo")


class Swapping:
    """`end` ends a container whose memory is lost, with a reason. `budget`: bytes of host memory, at most."""

    def __init__(
        self,
        card: CardHelper,
        engine: Engine,
        broker: Broker,
        store: Store,
        end: Callable[[Tenant, str], Awaitable[None]],
        budget: int,
    ) -> None:
        self._card = card
        self._engine = engine
        self._broker = broker
        self._store = store
        self._end = end
        self._budget = budget
        self._transfer = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        broker.restore = self._come
        self.why_not = "The scheduler is starting."

    async def start(self) -> None:
        """Finds out whether this machine can do it."""
        self.why_not = await self._card.why_not() if self._budget else "Swapping is off: GPUSHARE_SWAP_MEMORY is 0."
        if self.why_not:
            log.info("VRAM cannot be moved to host memory: %s", self.why_not)

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._card.close()

    # ---- out ----

    async def out(self, tenant: Tenant, why: str) -> str:
        """Returns a sentence on what came free. Raises Problem, and nothing has changed."""
        if tenant.swap == Swap.OUT:
            self._broker.swapped_out(tenant)  # it may wait to come back, or for its turn: that is called off
            return "Its GPU memory is in host memory already."
        if tenant.swap == Swap.LEAVING:
            async with self._transfer:
                pass  # what an earlier scheduler had begun is undone by then
        if tenant.swap:
            raise Problem("swapping", "Its GPU memory is just being moved. Try again in a moment.", 409)
        if not _holders(tenant):
            return "It held no GPU memory."
        async with self._transfer:
            self._require_room(tenant)  # now: another may have taken it while this one waited for its turn
            begun = time.monotonic()
            await self._move_out(tenant)
            await self._is_out(tenant, why, time.monotonic() - begun)
        return f"{size(_out(tenant))} of GPU memory came free in {time.monotonic() - begun:.1f} s."

    def _require_room(self, tenant: Tenant) -> None:
        if self.why_not:
            raise Problem("cannot_swap", f"Its GPU memory cannot be freed: {self.why_not}", 409)
        needed = sum(tenant.used(gpu) for gpu in tenant.quota)
        taken = sum(_out(other) for other in self._broker.tenants.values())
        if taken + needed > self._budget:
            raise Problem(
                "no_host_memory",
                f"Its {size(needed)} do not fit into host memory: of the {size(self._budget)} that may be used "
                f"for this {size(taken)} are taken (GPUSHARE_SWAP_MEMORY).",
                409,
            )
        if needed > (there := available()):
            raise Problem("no_host_memory", f"Its {size(needed)} do not fit: the host has {size(there)} left.", 409)
        if (left := self._engine.memory_left()) is not None and needed > left:
            raise Problem(
                "no_host_memory",
                f"Its {size(needed)} do not fit: all containers together may take {size(left)} more of host memory "
                "(GPUSHARE_HOST_MEMORY).",
                409,
            )

    async def _move_out(self, tenant: Tenant) -> None:
        # From here on none of its processes gets more, so nobody but these holds anything when they are out.
        self._broker.tell(ContainerPaused(self._broker.now(), tenant.id))
        self._take_back_headroom(tenant)
        sessions = _holders(tenant)
        await self._stage(tenant, Swap.LEAVING)
        try:
            await self._engine.add_memory(tenant.engine_id, sum(tenant.granted(gpu) for gpu in tenant.quota))
            for session in sessions:
                await self._make(session, State.LOCKED)
            self._take_back_headroom(tenant)
            for session in sessions:
                await self._make(session, State.CHECKPOINTED)
        except (CardError, EngineError) as error:
            await self._undo(tenant, sessions)
            raise Problem("cannot_swap", f"Its GPU memory could not be freed: {error}", 409) from error

    def _take_back_headroom(self, tenant: Tenant) -> None:
        for gpu in tenant.quota:
            taken = {id_: got for id_, lease in tenant.leases(gpu).items() if (got := lease.take_back())}
            self._broker.tell(Returned(self._broker.now(), gpu, taken))

    async def _undo(self, tenant: Tenant, sessions: list[Session]) -> None:
        """Everything is as it was, at once or as soon as the driver answers; what it has lost ends the container."""
        for session in sessions:
            try:
                await self._await_answer(session)
                await self._bring(session)
            except CardError as error:
                if error.state is State.FAILED:
                    await self._lost(tenant, error)
                    return
                log.error("container %s is stopped on its card, and will go on later: %s", tenant.name, error)
                self._later(tenant, partial(self._undo, tenant, sessions))
                return
        await self._lower_memory(tenant)
        await self._stage(tenant, "")
        if not tenant.paused:
            self._broker.tell(ContainerResumed(self._broker.now(), tenant.id))

    async def _is_out(self, tenant: Tenant, why: str, seconds: float) -> None:
        if tenant.finished:
            raise Problem("container_ended", f'"{tenant.name}" has ended.', 409)
        for gpu in tenant.quota:
            if leased := tenant.granted(gpu):
                tenant.note_peak(gpu)
                tenant.told[gpu] = 0
                self._store.event(
                    "swapped_out", tenant.id, gpu=gpu, size=leased, used_after=0, waited=0.0,
                    detail=f"{why} It took {seconds:.2f} s.",
                )  # fmt: skip
        swapped = sum(tenant.granted(gpu) for gpu in tenant.quota)
        self._store.container(tenant.id, swapped_at=timezone.now(), swapped=swapped)
        await self._stage(tenant, Swap.OUT)
        self._broker.swapped_out(tenant)

    # ---- back ----

    def want_back(self, tenant: Tenant) -> None:
        """Puts it into the queue, unless it is frozen; it is brought back when there is room."""
        if tenant.swap == Swap.OUT and not tenant.paused:
            self._broker.tell(ContainerResumed(self._broker.now(), tenant.id))
            self._broker.want_back(tenant)

    def _come(self, container: str) -> None:
        tenant = self._broker.tenants.get(container)
        if tenant is not None and tenant.swap == Swap.OUT:
            self._begin(tenant, self._bring_back(tenant))

    def _begin(self, tenant: Tenant, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what, name=f"swapping {tenant.name}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _later(self, tenant: Tenant, what: Callable[[], Awaitable[None]]) -> None:
        async def later() -> None:
            await asyncio.sleep(AGAIN)
            await what()

        self._begin(tenant, later())

    async def _bring_back(self, tenant: Tenant) -> None:
        async with self._transfer:
            if not tenant.swap or _out(tenant) or tenant.killed or tenant.finished:
                return  # it is back already, or was called off while it waited for its turn
            if tenant.paused:  # from outside: a frozen process does not answer, and all others would wait with it
                self._later(tenant, partial(self._bring_back, tenant))
                return
            begun, had = time.monotonic(), {gpu: tenant.granted(gpu) for gpu in tenant.quota}
            try:
                await self._stage(tenant, Swap.COMING)
                for session in list(tenant.sessions.values()):
                    await self._bring(session)
            except CardError as error:
                await self._not_back(tenant, error)
                return
            if tenant.killed or tenant.finished:
                return
            await self._lower_memory(tenant)
            for gpu, held in had.items():
                if held:
                    tenant.told[gpu] = held
                    self._store.event(
                        "swapped_in", tenant.id, gpu=gpu, size=held, used_after=held,
                        detail=f"It took {time.monotonic() - begun:.2f} s.",
                    )  # fmt: skip
            if not any(had.values()):
                self._store.event("swapped_in", tenant.id, detail="Its processes that had GPU memory have ended.")
            self._store.container(tenant.id, swapped_at=None, swapped=0)
            await self._stage(tenant, "")
        self._broker.changed(tenant.id)

    async def _not_back(self, tenant: Tenant, error: CardError) -> None:
        """There was less room than the card had said, or it does not answer: later. What is lost ends it.

        It keeps what it was lent meanwhile: some of its processes may be back already.
        """
        if error.state is State.FAILED:
            await self._lost(tenant, error)
            return
        log.error("container %s was not brought back, and will be later: %s", tenant.name, error)
        self._later(tenant, partial(self._bring_back, tenant))

    async def _lost(self, tenant: Tenant, error: CardError) -> None:
        log.error("container %s has lost its GPU memory: %s", tenant.name, error)
        await self._end(tenant, f"Its GPU memory was lost on the way to or from host memory: {error}"[:500])

    # ---- one process ----

    async def _await_answer(self, session: Session) -> None:
        """A lock that was given up may be done yet, of one that was frozen say. What comes after it undoes it."""
        if session.ended:
            return
        try:
            await self._card.unlock(session.pid, GRACE)
        except CardError as error:
            if error.why is Why.HUNG:
                raise

    async def _bring(self, session: Session) -> None:
        await self._make(session, State.RUNNING)

    async def _make(self, session: Session, wanted: State) -> None:
        """Whatever state it is in, step by step it comes to be in this one, unless it ends. Raises CardError.

        What was asked for before and got no answer may be done only now, so each step is asked for again.
        """
        for _ in range(ATTEMPTS):
            state = await self._state(session)
            if state in (wanted, State.UNKNOWN):
                return
            if state is State.FAILED:
                raise CardError(Why.FAILED, session.pid, f"The driver gave process {session.pid} up.", state)
            try:
                if state is State.CHECKPOINTED:
                    await self._card.restore(session.pid, _patience(session))
                elif state is State.RUNNING:
                    await self._card.lock(session.pid, LOCK_SECONDS)
                elif wanted is State.RUNNING:
                    await self._card.unlock(session.pid, GRACE)
                else:
                    await self._card.checkpoint(session.pid, _patience(session))
            except CardError as error:
                if error.why not in (Why.NOT_THERE, Why.WRONG_STATE):
                    raise
        raise CardError(Why.BUSY, session.pid, f"Process {session.pid} did not come to rest.")

    # ---- over a restart ----

    async def go_on(self) -> None:
        """Brings to its end what an earlier scheduler had under way, but for what an open command will."""
        commands = await self._store.records.commands()
        by_command = {str(command.container_id) for command in commands if command.kind == Command.Kind.PAUSE}
        for tenant in [tenant for tenant in self._broker.tenants.values() if tenant.swap and not tenant.killed]:
            if tenant.swap == Swap.LEAVING:
                self._begin(tenant, self._undo_in_turn(tenant))  # its command, carried out again, waits for that
            elif tenant.swap == Swap.COMING:
                self._begin(tenant, self._bring_back(tenant))
            elif not tenant.paused and tenant.id not in by_command:
                self.want_back(tenant)

    async def _undo_in_turn(self, tenant: Tenant) -> None:
        async with self._transfer:
            await self._undo(tenant, list(tenant.sessions.values()))

    # ---- helpers ----

    async def _state(self, session: Session) -> State:
        if session.ended:
            return State.UNKNOWN
        try:
            return await self._card.state(session.pid, GRACE)
        except CardError as error:
            if error.why is Why.NOT_THERE:
                return State.UNKNOWN
            raise

    async def _lower_memory(self, tenant: Tenant) -> None:
        try:
            await self._engine.add_memory(tenant.engine_id, 0)
        except EngineError as error:
            log.warning("container %s keeps its raised limit of host memory: %s", tenant.name, error)

    async def _stage(self, tenant: Tenant, stage: str) -> None:
        """Returns once it is in the database."""
        tenant.swap = stage
        if tenant.finished:
            return
        self._store.container(tenant.id, swap=stage)
        while True:
            try:
                await self._store.durable()
            except DatabaseError as error:
                log.error("container %s: its swapping waits for the database: %s", tenant.name, error)
                await asyncio.sleep(1.0)
            else:
                return


def _holders(tenant: Tenant) -> list[Session]:
    return [s for s in tenant.sessions.values() if not s.ended and any(lease.used for lease in s.leases.values())]


def _out(tenant: Tenant) -> int:
    return sum(tenant.out(gpu) for gpu in tenant.quota)


def _patience(session: Session) -> float:
    return GRACE + sum(lease.granted for lease in session.leases.values()) / SLOWEST


def available() -> int:
    """Bytes of host memory that programs can still get, by the kernel's own estimate."""
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) << 10
