"""Moves what a container has on its cards to the host's memory, and back.

Out: its limit of host memory is raised (the image counts as the programs' own), idle headroom is taken back, each of
its processes that holds any of a card is locked and its memory moved. Then the core has it all back, and others may be
given it. If any of that fails, what was done is undone, and nothing has changed.

Back: the core lends it all that it had, like to any newcomer, and only then is it moved to the cards and unlocked.

Who wants it out is a person (`out`; it is frozen then) or the core (`GiveWay`: it is not, and comes back when the core
says so). Each `GiveWay` is answered by `SwappedOut` or `NotMoved`, each `Restore` by `CameBack`.

How far it is stands in the container's row before each step (`Swap`), and what each process is in is asked of the
driver; so whoever takes over brings it to its end. One transfer at a time: two would take twice as long each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from math import inf
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from scheduler import clock
from scheduler.card.helper import CardError, CardHelper, State, Why, is_stopped
from scheduler.card.speeds import Speeds
from scheduler.card.turns import TurnPlayer
from scheduler.containers import room
from scheduler.containers.moving import Mover, why_it_stays
from scheduler.core.admission import size
from scheduler.core.events import (
    STAYS,
    ActivityDetected,
    CameBack,
    ContainerPaused,
    ContainerResumed,
    GiveWay,
    Movable,
    NotMoved,
    Returned,
)
from scheduler.core.state import Mode
from scheduler.engines.base import EngineError
from scheduler.sessions.tenants import Session, Tenant
from scheduler.shared import SharedParts
from web.errors import Problem
from web.models import Command, GaveWay, Swap
from web.models.states import NOT_SWAPPED

log = logging.getLogger(__name__)

AGAIN = 5.0  # seconds until what could not be brought back is tried again
FULL_AGAIN = 1.0  # until the database is asked again that did not take a step
LONGEST = 120.0  # between two tries where the driver does not answer, so that others get their turn
ANSWERS_WITHIN = 2.0  # seconds for the processes of one that was not moved, while others wait for their turn
ASIDE, LONGEST_ASIDE = 60.0, 3600.0  # seconds in which one that did not answer is not asked to give way; twice as many
STANDS = "TtD"  # states of a thread that explain why its process does not answer, and may end (proc_pid_stat(5))
GIVE_UP = 600.0  # seconds in which the driver has not answered once about a process that runs: its memory is lost


class Swapping:
    """`end` ends a container whose memory is lost, with a reason. `budget`: bytes of host memory, at most.

    `moved` is called after each transfer, which has changed the `speeds`.
    """

    def __init__(
        self,
        shared: SharedParts,
        card: CardHelper,
        turns: TurnPlayer,
        end: Callable[[Tenant, str], Awaitable[None]],
        moved: Callable[[], None],
    ) -> None:
        self._engine, self._broker, self._store = shared.engine, shared.broker, shared.store
        self._card, self._mover, self._turns, self._end = card, Mover(card), turns, end
        asked: int | None = settings.GPUSHARE_SWAP_MEMORY
        self.budget = room.available() // 2 if asked is None else asked
        self.speeds, self.moved = Speeds({}), moved
        self._transfer = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self._hung: dict[str, float] = {}  # container → since when the driver does not answer
        self.why_not = "The scheduler is starting."

    async def start(self) -> None:
        """Finds out whether this machine can do it. Raises DatabaseError."""
        self.speeds = Speeds(await self._store.records.moved())
        off = "" if self.budget else "Swapping is off: GPUSHARE_SWAP_MEMORY is 0."
        self.why_not = self._engine.memory_stays or off or await self._card.why_not()
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
        await self.settle(tenant)
        if tenant.is_out:
            return self._stays_out(tenant)
        if tenant.swap:
            why = tenant.not_restored or "Its GPU memory is just being moved. Try again in a moment."
            raise Problem("swapping", why, 409)
        if not _holders(tenant):
            return "It held no GPU memory."
        async with self._transfer:
            if tenant.is_out:  # it gave way while this one waited for its turn
                return self._stays_out(tenant)
            _require_movable(tenant)
            self._require_room(tenant)  # now: another may have taken it meanwhile
            self._require_share(tenant)
            # From here on none of its processes gets more, so nobody but these holds anything when they are out.
            self._broker.tell(ContainerPaused(self._broker.now(), tenant.id))
            begun = clock.monotonic()
            await self._move_out(tenant)
            await self._is_out(tenant, why, clock.monotonic() - begun)
        return f"{size(_out(tenant))} of GPU memory came free in {clock.monotonic() - begun:.1f} s."

    async def settle(self, tenant: Tenant) -> None:
        """Where it gives way, or what an earlier scheduler had begun is undone: returns when that has an end."""
        if tenant.swap == Swap.LEAVING:
            async with self._transfer:
                pass
            async with tenant.undoing:
                pass

    def _stays_out(self, tenant: Tenant) -> str:
        self._broker.swapped_out(tenant)  # it may wait to come back, or for its turn: that is called off
        self._is_asked(tenant)
        return "Its GPU memory is in host memory already."

    def _is_asked(self, tenant: Tenant) -> None:
        """A person decides on it from now on: it does not come back, or stay out, for what it computes itself."""
        tenant.gave_way = ""
        self._store.container(tenant.id, gave_way="", gave_way_to="")

    def give_way(self, told: GiveWay) -> None:
        tenant, whom = self._broker.tenants[told.container], self._broker.tenants.get(told.whom)
        self._begin(tenant, self._go(tenant, whom.name if whom else "", told.why))

    async def _go(self, tenant: Tenant, whom: str, why: Mode) -> None:
        async with self._transfer:
            if tenant.swap or tenant.finished or tenant.killed:
                return  # a person was faster, and what became of that is told
            try:
                if self._broker.state.containers[tenant.id].paused:  # or about to be
                    raise Problem("paused", "It was paused meanwhile.", 409)
                _require_movable(tenant)
                self._require_room(tenant)
            except (Problem, OSError) as problem:
                self._stays(tenant, whom, problem)
                self._broker.tell(NotMoved(self._broker.now(), tenant.id))
                return
            begun = clock.monotonic()
            try:
                await self._move_out(tenant)
                sentence = f'{GaveWay(why.value).told} "{whom}".'
                await self._is_out(tenant, sentence, clock.monotonic() - begun, gave_way=why.value, gave_way_to=whom)
            except Problem as problem:  # what was done is undone, or will be, and the core is told then
                self._stays(tenant, whom, problem)

    def _stays(self, tenant: Tenant, whom: str, why: Exception) -> None:
        if not (tenant.finished or tenant.killed):
            log.warning("container %s did not give way: %s", tenant, why)
            self._store.event("not_moved", tenant.id, detail=f'It was to give way to "{whom}". {why}')

    def _require_share(self, tenant: Tenant) -> None:
        owners = {each.id: each.owner for each in self._broker.state.containers.values()}
        tenants = self._broker.tenants.values()
        mine = [each for each in tenants if owners.get(each.id) == owners.get(tenant.id)]
        room.require_share(tenant, mine, [each for each in tenants if each not in mine], self.budget)

    def _require_room(self, tenant: Tenant) -> None:
        if self.why_not:
            raise Problem("cannot_swap", f"Its GPU memory cannot be freed: {self.why_not}", 409)
        room.require(tenant, self._broker.tenants.values(), self.budget, self._engine.memory_left())

    async def _move_out(self, tenant: Tenant) -> None:
        self._take_back_headroom(tenant)
        sessions = _holders(tenant)
        await self._stage(tenant, Swap.LEAVING)
        try:
            if not await self._turns.settled(tenant.id):  # who is let go within a checkpoint does not survive it
                raise CardError(Why.HUNG, 0, "It does not answer, and is still stopped for its turn.")
            await self._engine.add_memory(tenant.engine_id, sum(tenant.granted(gpu) for gpu in tenant.quota))
            await self._mover.stop(sessions)
            await self._mover.have_answers(sessions)
            if why := why_it_stays(tenant):  # since it was looked at; now its processes are locked
                raise EngineError(why)
            self._take_back_headroom(tenant)
            for session in sessions:
                await self._mover.out(session)
            if tenant.killed:  # while it has time to end, what it has to save may be on its cards
                raise EngineError(f'"{tenant.name}" is being ended.')
        except Exception as error:
            if not isinstance(error, CardError | EngineError):
                log.exception("container %s is not moved", tenant)
            await self._undo(tenant, sessions, _stays(tenant, error))
            raise Problem("cannot_swap", f"Its GPU memory could not be freed: {error}", 409) from error

    def _take_back_headroom(self, tenant: Tenant) -> None:
        for gpu in tenant.quota:
            taken = {id_: got for id_, lease in tenant.leases(gpu).items() if (got := lease.take_back())}
            self._broker.tell(Returned(self._broker.now(), gpu, taken))

    async def _undo(self, tenant: Tenant, sessions: list[Session], stays: float) -> None:
        """Everything is as it was, at once or as soon as the driver answers; what it has lost ends the container.

        It is not asked to give way for so many seconds (`stays`).
        """
        await self._all_back(tenant, sessions, stays, await self._mover.await_answers(sessions, ANSWERS_WITHIN))

    async def _all_back(
        self, tenant: Tenant, sessions: list[Session], stays: float, silent: Mapping[int, CardError]
    ) -> None:
        """Those that answer go on whatever the others do. `silent`: those that do not."""
        errors = list(silent.values())
        for session in sessions:
            try:
                if session.id not in silent:
                    await self._mover.back(session)
            except CardError as error:
                errors.append(error)
        if errors:
            log.error("container %s is stopped on its card, and will go on later: %s", tenant, errors[0])
            self._broker.tell(NotMoved(self._broker.now(), tenant.id, inf))  # until then: others give way meanwhile
            again = partial(self._undo_in_turn, tenant, sessions, stays)
            await self._not_yet(tenant, next((each for each in errors if each.is_final), errors[0]), again)
            return
        self._hung.pop(tenant.id, None)
        await self._lower_memory(tenant)
        await self._stage(tenant, "")
        if not tenant.is_stuck:
            self._broker.tell(ContainerResumed(self._broker.now(), tenant.id))
        self._broker.tell(NotMoved(self._broker.now(), tenant.id, stays))

    async def _is_out(
        self, tenant: Tenant, why: str, seconds: float, gave_way: str = "", gave_way_to: str = ""
    ) -> None:
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
        self._store.container(
            tenant.id,
            swapped_at=self._store.clocks.now(tenant.id),
            swapped=swapped,
            gave_way=gave_way,
            gave_way_to=gave_way_to,
        )
        tenant.gave_way, tenant.unanswered = gave_way, 0
        self._note("out" if tenant.was_out else "first", swapped, seconds)
        tenant.was_out = True
        await self._stage(tenant, Swap.OUT)
        self._broker.swapped_out(tenant)

    def _note(self, kind: str, size: int, seconds: float) -> None:
        self.speeds.note(kind, size, seconds)
        self.moved()

    def look(self) -> None:
        """Says which containers cannot be moved, and why, as soon as their lease pages do."""
        for tenant in self._broker.tenants.values():
            why, known = why_it_stays(tenant), self._broker.state.containers.get(tenant.id)
            if why != tenant.cannot_move:
                tenant.cannot_move = why
                self._store.container(tenant.id, cannot_move=why)
            if known is not None and known.movable is bool(why):
                self._broker.tell(Movable(self._broker.now(), tenant.id, not why))

    # ---- back ----

    def resume(self, tenant: Tenant) -> None:
        """For a person; a next scheduler goes on with it. What could not be restored is tried once more."""
        stuck, tenant.not_restored = tenant.not_restored, ""
        if stuck:
            self._store.container(tenant.id, not_restored="")
            if not tenant.is_stuck:
                self._broker.tell(ContainerResumed(self._broker.now(), tenant.id))
        if stuck and tenant.swap == Swap.COMING:
            self._begin(tenant, self._bring_back(tenant))
        elif stuck and tenant.swap == Swap.LEAVING:
            self._begin(tenant, self._undo_in_turn(tenant, list(tenant.sessions.values())))
        if tenant.is_out and tenant.gave_way:
            self._is_asked(tenant)
        self.want_back(tenant)

    def want_back(self, tenant: Tenant, since: float | None = None) -> None:
        """Puts it into the queue, unless it is frozen; it is brought back when there is room."""
        if tenant.is_out and not tenant.is_stuck:
            self._broker.tell(ContainerResumed(self._broker.now(), tenant.id))
            self._broker.want_back(tenant, since)

    def come(self, container: str) -> None:
        tenant = self._broker.tenants.get(container)
        if tenant is not None and tenant.is_out:
            self._begin(tenant, self._bring_back(tenant))

    def _begin(self, tenant: Tenant, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(what, name=f"swapping {tenant.name}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _later(self, tenant: Tenant, what: Callable[[], Awaitable[None]], after: float = AGAIN) -> None:
        async def later() -> None:
            await asyncio.sleep(after)
            await what()

        self._begin(tenant, later())

    async def _bring_back(self, tenant: Tenant) -> None:
        async with self._transfer:
            if not tenant.swap or _out(tenant) or (tenant.killed and tenant.is_out) or tenant.finished:
                return  # it is back already, or was called off while it waited for its turn
            if tenant.not_restored:
                return  # by an earlier try; the next one is a person's
            if tenant.paused and tenant.is_out:  # from outside; it is asked for again when it goes on
                self._broker.swapped_out(tenant)
                return
            if self._is_frozen(tenant, partial(self._bring_back, tenant)):
                self._broker.tell(NotMoved(self._broker.now(), tenant.id))
                return
            begun, had = clock.monotonic(), {gpu: tenant.granted(gpu) for gpu in tenant.quota}
            try:
                await self._stage(tenant, Swap.COMING)
                for session in list(tenant.sessions.values()):
                    await self._mover.back_in_turn(session, self._transfer)
            except CardError as error:
                # There was less room than the card had said, or it does not answer. It keeps what it was lent
                # meanwhile: some of its processes may be back already.
                log.error("container %s was not brought back, and will be later: %s", tenant, error)
                self._broker.tell(NotMoved(self._broker.now(), tenant.id))
                await self._not_yet(tenant, error, partial(self._bring_back, tenant))
                return
            if tenant.finished:
                return
            await self._is_back(tenant, had, clock.monotonic() - begun)
        self._broker.changed(tenant.id)

    async def _is_back(self, tenant: Tenant, had: Mapping[str, int], seconds: float) -> None:
        """`had`: bytes by GPU, as it has them again."""
        self._hung.pop(tenant.id, None)
        await self._lower_memory(tenant)
        why = "It computes again. " if tenant.gave_way == Mode.IDLE else ""
        for gpu, held in had.items():
            if held:
                tenant.told[gpu] = held
                self._store.event(
                    "swapped_in", tenant.id, gpu=gpu, size=held, used_after=held,
                    detail=f"{why}It took {seconds:.2f} s.",
                )  # fmt: skip
        if not any(had.values()):
            self._store.event("swapped_in", tenant.id, detail="Its processes that had GPU memory have ended.")
        self._store.container(tenant.id, **NOT_SWAPPED)
        tenant.gave_way = ""
        self._note("back", sum(had.values()), seconds)
        await self._stage(tenant, "")
        self._broker.tell(CameBack(self._broker.now(), tenant.id))
        self._broker.tell(ActivityDetected(self._broker.now(), tenant.id))  # however long it was idle before

    async def _not_yet(self, tenant: Tenant, error: CardError, again: Callable[[], Awaitable[None]]) -> None:
        """It is tried again, ever later where the driver does not answer. What is lost ends it; what the driver refuses
        to bring back is not waited for."""
        if error.state is State.FAILED:
            await self._lost(tenant, error)
        elif error.is_final:
            await self._not_restored(tenant, error)
        elif error.why is not Why.HUNG or not error.pid:  # no worker could be started: nobody has been asked
            self._later(tenant, again)
        else:
            now = clock.monotonic()
            hung = now - self._hung.setdefault(tenant.id, now)
            if hung > GIVE_UP and not is_stopped(error.pid, STANDS):
                await self._lost(tenant, error)
            else:
                self._later(tenant, again, min(max(AGAIN, hung), LONGEST))

    async def _not_restored(self, tenant: Tenant, error: CardError) -> None:
        """Its owner decides what becomes of it: what it does without its cards goes on. It is tried again on a resume.

        What it was lent goes to others, if none of its processes is back.
        """
        why = f"Its GPU memory could not be brought back from host memory, and will not come back by itself: {error}"
        log.error("container %s: %s", tenant, why)
        tenant.not_restored = why[:500]
        self._store.container(tenant.id, not_restored=tenant.not_restored)
        self._store.event("not_restored", tenant.id, detail=tenant.not_restored)
        self._broker.tell(ContainerPaused(self._broker.now(), tenant.id))  # it will not free, allocate or come back
        self._broker.tell(NotMoved(self._broker.now(), tenant.id, inf))
        await self._lend_to_others(tenant)

    async def _lend_to_others(self, tenant: Tenant) -> None:
        """What it was lent, if the driver says that none of its processes has anything on its cards."""
        if tenant.finished or tenant.is_out or not await self._mover.are_out(list(tenant.sessions.values())):
            return
        held = sum(tenant.granted(gpu) for gpu in tenant.quota)
        since = {"swapped_at": self._store.clocks.now(tenant.id)} if tenant.swap == Swap.LEAVING else {}
        self._store.container(tenant.id, swapped=held, **since)
        await self._stage(tenant, Swap.OUT)
        self._broker.swapped_out(tenant)
        self.want_back(tenant)  # if a person has resumed it meanwhile

    async def _lend_to_others_in_turn(self, tenant: Tenant) -> None:
        if self._broker.unseen:  # one of its processes may be among those that could not be looked at yet
            self._later(tenant, partial(self._lend_to_others_in_turn, tenant))
            return
        async with self._transfer:
            if tenant.not_restored:
                await self._lend_to_others(tenant)

    async def _lost(self, tenant: Tenant, error: CardError) -> None:
        log.error("container %s has lost its GPU memory: %s", tenant, error)
        await self._end(tenant, f"Its GPU memory was lost on the way to or from host memory: {error}"[:500])

    # ---- over a restart ----

    async def go_on(self) -> None:
        """Brings to its end what an earlier scheduler had under way, but for what an open command will.

        Also of who is killed: in its grace it may have to save what it has on its cards.
        """
        commands = await self._store.records.commands()
        by_command = {str(command.container_id) for command in commands if command.kind == Command.Kind.PAUSE}
        for tenant in [tenant for tenant in self._broker.tenants.values() if tenant.swap]:
            if tenant.not_restored:  # a person resumes it, or ends it
                self._begin(tenant, self._lend_to_others_in_turn(tenant))
            elif tenant.swap == Swap.LEAVING:  # its command, carried out again, waits for that
                self._begin(tenant, self._undo_in_turn(tenant, list(tenant.sessions.values())))
            elif tenant.swap == Swap.COMING:
                self._begin(tenant, self._bring_back(tenant))
            elif not (tenant.paused or tenant.killed or tenant.id in by_command) and _wants_back(tenant):
                self.want_back(tenant, tenant.waited_since)

    def found_late(self, tenant: Tenant, session: Session) -> None:
        """By a take-over that could look at it only after its start: what was begun on it is brought to its end."""
        if not self.why_not:
            self._begin(tenant, self._settle_late(tenant, session))

    async def _settle_late(self, tenant: Tenant, session: Session) -> None:
        async with self._transfer:
            if session.ended or tenant.finished or (tenant.not_restored and not tenant.is_out):
                return
            if tenant.swap in (Swap.LEAVING, Swap.COMING):  # a move that hangs knows nothing of it
                self._later(tenant, partial(self._settle_late, tenant, session))
                return
            if tenant.is_out:
                self._broker.swapped_out(tenant)
                if not tenant.paused and _wants_back(tenant):
                    self.want_back(tenant, tenant.waited_since)
                return
            try:
                async with self._turns.away(tenant.id, "found late"):
                    await self._mover.back(session)
            except CardError as error:
                await self._not_yet(tenant, error, partial(self._settle_late, tenant, session))

    async def _undo_in_turn(self, tenant: Tenant, sessions: list[Session], stays: float = 0.0) -> None:
        """Others have their turn while its processes do not answer: nothing of them is transferred then."""
        again = partial(self._undo_in_turn, tenant, sessions, stays)
        async with tenant.undoing:
            if tenant.swap != Swap.LEAVING or tenant.finished or self._is_frozen(tenant, again):
                return
            silent = await self._mover.await_answers(sessions)
            async with self._transfer:
                if tenant.swap == Swap.LEAVING and not tenant.finished and not self._is_frozen(tenant, again):
                    await self._all_back(tenant, sessions, stays, silent)

    # ---- helpers ----

    def _is_frozen(self, tenant: Tenant, again: Callable[[], Awaitable[None]]) -> bool:
        """From outside. Such a process does not answer, and all others would wait with it: it is tried again later."""
        if tenant.paused:
            self._hung.pop(tenant.id, None)
            self._later(tenant, again)
        return tenant.paused

    async def _lower_memory(self, tenant: Tenant) -> None:
        try:
            await self._engine.add_memory(tenant.engine_id, 0)
        except EngineError as error:
            log.warning("container %s keeps its raised limit of host memory for now: %s", tenant, error)
            self._later(tenant, partial(self._lower_memory_later, tenant))

    async def _lower_memory_later(self, tenant: Tenant) -> None:
        async with self._transfer:
            if not tenant.swap and not tenant.finished:
                await self._lower_memory(tenant)

    async def _stage(self, tenant: Tenant, stage: str) -> None:
        """Returns once it is in the database."""
        tenant.swap = stage
        self._turns.bar(tenant.id, "moving", on=bool(stage))
        if tenant.finished:
            return
        self._store.container(tenant.id, swap=stage)
        while True:
            try:
                await self._store.durable()
            except DatabaseError as error:
                log.error("container %s: its swapping waits for the database: %s", tenant, error)
                await asyncio.sleep(FULL_AGAIN)
            else:
                return


def _holders(tenant: Tenant) -> list[Session]:
    return [s for s in tenant.sessions.values() if not s.ended and any(lease.used for lease in s.leases.values())]


def _stays(tenant: Tenant, error: Exception) -> float:
    """Seconds in which it is not asked to give way after this; ever more where it does not answer."""
    if isinstance(error, CardError) and error.why is Why.CANNOT:
        return inf
    if isinstance(error, CardError) and error.why is Why.HUNG:
        tenant.unanswered += 1
        return min(ASIDE * 2.0 ** (tenant.unanswered - 1), LONGEST_ASIDE)
    return STAYS


def _require_movable(tenant: Tenant) -> None:
    if why := why_it_stays(tenant):
        raise Problem("cannot_swap", f"Its GPU memory cannot be freed: {why}", 409)


def _out(tenant: Tenant) -> int:
    return sum(tenant.out(gpu) for gpu in tenant.quota)


def _wants_back(tenant: Tenant) -> bool:
    """Of one that is out and not frozen: it waits to come back, or was resumed, or was not done when it gave way."""
    return tenant.gave_way != Mode.IDLE or tenant.waited_since is not None
