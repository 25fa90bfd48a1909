"""Moves what a container has on its cards to the host's memory, and back.

Out: its limit of host memory is raised (the image counts as the programs' own), idle headroom is taken back, each of
its processes that holds any of a card is locked and its memory moved. Then the core has it all back, and others may be
given it. If any of that fails, what was done is undone, and nothing has changed.

Back: the core lends it all that it had, like to any newcomer, and only then is it moved to the cards and unlocked.

A person wants it out (`out`; it is paused then), or the core (`Preempt`: it comes back when the core says so).

How far it is stands in the container's row before each step (`Swap`), and what each process is in is asked of the
driver. What is begun and under nobody's hands (after a failure, a restart, a `Restore`) `_settle` brings to its end, by
the table in core/moves/. One transfer at a time: two would take twice as long each.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from math import inf
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from scheduler import clock
from scheduler.card.helper import CardError, CardHelper, State, Why, is_stopped
from scheduler.card.speeds import Speeds
from scheduler.card.turns import TurnPlayer
from scheduler.containers import host_memory_budget, moving
from scheduler.containers.cards.changing import CardChange, Reassign
from scheduler.core import moves
from scheduler.core.admission import size
from scheduler.core.effects import Preempt, Relocate
from scheduler.core.events import STAYS, ActivityDetected, CameBack, MoveBegun, NotMoved
from scheduler.core.moves import Action
from scheduler.core.state import Mode, Stage
from scheduler.engines.base import EngineError
from scheduler.parts import Background
from scheduler.sessions.live_containers import LiveContainer, Session
from scheduler.shared import SharedParts
from web.errors import Problem
from web.models import Command, GaveWay, Swap
from web.models.states import NOT_SWAPPED

log = logging.getLogger(__name__)

AGAIN = 5.0  # seconds until what could not be brought back is tried again
FULL_AGAIN = 1.0  # until the database is asked again that did not take a step
LONGEST = 120.0  # between two tries where the driver does not answer, so that others get their turn
ANSWERS_WITHIN = 2.0  # seconds for the processes of one that was not moved, while others wait for their turn
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
        end: Callable[[LiveContainer, str], Awaitable[None]],
        moved: Callable[[], None],
        reassign: Reassign,
    ) -> None:
        self._engine, self._broker, self._store = shared.engine, shared.broker, shared.store
        self._card, self._mover, self._turns, self._end = card, moving.Mover(card), turns, end
        self.cards = CardChange(shared, reassign)
        asked: int | None = settings.GPUSHARE_SWAP_MEMORY
        self.budget = host_memory_budget.available() // 2 if asked is None else asked
        self.speeds, self.moved = Speeds({}), moved
        self._transfer = asyncio.Lock()  # taken after `LiveContainer.moving`
        self._under_way = Background()
        self._due: dict[str, asyncio.TimerHandle] = {}  # container → when it is settled next
        self.why_not = "The scheduler is starting."

    async def start(self) -> None:
        """Finds out whether this machine can do it. Raises DatabaseError."""
        self.speeds = Speeds(await self._store.records.moved())
        off = "" if self.budget else "Swapping is off: GPUSHARE_SWAP_MEMORY is 0."
        self.why_not = self._engine.memory_stays or off or await self._card.why_not()
        if self.why_not:
            log.info("VRAM cannot be moved to host memory: %s", self.why_not)

    async def go_on(self) -> None:
        """Brings to its end what an earlier scheduler had under way, but for what an open command will.

        Also of one that is killed: in its grace it may have to save what it has on its cards.
        """
        commands = await self._store.records.commands()
        by_command = {str(command.container_id) for command in commands if command.kind == Command.Kind.PAUSE}
        for live in [live for live in self._broker.live_containers.values() if live.swap or live.not_restored]:
            live.raised = True
            for session in live.sessions.values():
                session.stopped = True  # for all that is known
            if not (live.is_out and live.id in by_command):
                self._begin(self._settle(live))

    async def close(self) -> None:
        for due in self._due.values():
            due.cancel()
        await self._under_way.close()
        await self._card.close()

    # ---- asked for ----

    async def out(self, live: LiveContainer, why: str) -> str:
        """For a person. Returns a sentence on what came free. Raises Problem, and nothing has changed."""
        await self.await_move(live)
        if not live.swap:
            if not moving.holders(live):
                return "It held no GPU memory."
            async with live.moving, self._transfer:
                if not live.swap:  # else it was preempted while this one waited for its turn
                    return await self._move_out(live, why)
        if not live.is_out:
            why = live.not_restored or "Its GPU memory is being moved. Try again in a moment."
            raise Problem("swapping", why, 409)
        self._broker.swapped_out(live)  # it may wait to come back, or for its turn: that is called off
        self._keep_out(live)
        return "Its GPU memory is in host memory already."

    async def leave_card(self, live: LiveContainer, old: str, new: str, why: str) -> None:
        """It is out, and comes back on another card as soon as there is room. Raises Problem."""
        await self.await_move(live)
        async with live.moving, self._transfer:
            self.cards.require(live, old, new)
            if not live.swap:
                await self._move_out(live, why, cards=(old, new))
            elif live.is_out:
                await self.cards.assign(live, old, new)
            else:
                raise Problem("swapping", "Its GPU memory is being moved. Try again in a moment.", 409)

    async def await_move(self, live: LiveContainer) -> None:
        """Where it is preempted, or what an earlier scheduler had begun is undone: returns when that has an end."""
        if live.swap == Swap.LEAVING:
            async with live.moving:
                pass

    def _keep_out(self, live: LiveContainer) -> None:
        """A person decides on it from now on: it does not come back, or stay out, for what it computes itself."""
        live.gave_way = ""
        self._store.container(live.id, gave_way="", gave_way_to="")

    def preempt(self, move: Preempt | Relocate) -> None:
        self._begin(self._preempt(move) if isinstance(move, Preempt) else self.cards.relocate(move, self.leave_card))

    def swap_in(self, container: str) -> None:
        """There is room for all that it had."""
        self._begin(self._settle(self._broker.live_containers[container]))

    async def _preempt(self, move: Preempt) -> None:
        live = self._broker.live_containers.get(move.container)
        if live is None:
            return  # it has ended, and is forgotten
        name = self._broker.names.get(move.whom, move.whom if move.why is Mode.BOOKED else "")
        async with live.moving, self._transfer:
            if live.swap or live.finished or live.killed:
                return  # a person was faster, and what became of that is reported
            try:
                if live.is_held:
                    raise Problem("paused", "It was paused meanwhile.", 409)
                await self._move_out(live, f'{GaveWay(move.why.value).opening} "{name}".', move.why.value, name)
            except (Problem, OSError) as problem:
                if not (live.finished or live.killed):
                    log.warning("container %s was not preempted: %s", live, problem)
                    self._store.event("not_moved", live.id, detail=f'It was to give way to "{name}". {problem}')
                core = self._broker.state.containers.get(live.id)
                if core is not None and core.stage is Stage.LEAVING:  # it was not even begun
                    self._broker.tell(NotMoved(self._broker.now(), live.id))

    def resume(self, live: LiveContainer) -> None:
        """For a person; a next scheduler goes on with it. What could not be restored is tried once more."""
        live.not_restored = ""
        self._store.container(live.id, not_restored="")
        if live.is_out and live.gave_way:
            self._keep_out(live)
        self._broker.update_paused(live)
        self._begin(self._settle(live))

    def found_late(self, live: LiveContainer, session: Session) -> None:
        """By a take-over that could look at it only after its start: what was begun on it is brought to its end."""
        if self.why_not:
            return
        session.stopped = True
        if live.is_out:
            self._broker.swapped_out(live)
        self._begin(self._settle(live))

    # ---- out ----

    async def _move_out(
        self, live: LiveContainer, why: str, gave_way: str = "", gave_way_to: str = "", cards: Sequence[str] = ()
    ) -> str:
        """In its turn. Returns a sentence on what came free. Raises Problem, and nothing has changed, or will have."""
        if stays := self.why_not or moving.why_it_stays(live):
            raise Problem("cannot_swap", f"Its GPU memory cannot be freed: {stays}", 409)
        live_containers, left = self._broker.live_containers.values(), self._engine.memory_left()
        host_memory_budget.require(live, live_containers, self.budget, left, by_owner=not gave_way)
        begun = clock.monotonic()
        # From here on none of its processes gets more, so nobody but these holds anything when they are out.
        self._broker.tell(MoveBegun(self._broker.now(), live.id))
        for gpu in live.quota:
            self._broker.collect_idle(live, gpu)
        sessions = moving.present(live) if cards else moving.holders(live)
        await self._stage(live, Swap.LEAVING)
        try:
            if not await self._turns.settled(live.id):  # who is let go within a checkpoint does not survive it
                raise CardError(Why.HUNG, 0, "It does not answer, and is still stopped for its turn.")
            live.raised = True
            await self._engine.add_memory(live.engine_id, sum(live.granted(gpu) for gpu in live.quota))
            await self._mover.stop(live, sessions)
            await self._mover.have_answers(sessions)
            if stays := moving.why_it_stays(live):  # since it was looked at; now its processes are locked
                raise EngineError(stays)
            for gpu in live.quota:
                self._broker.collect_idle(live, gpu)
            for session in sessions:
                await self._mover.out(session)
            if live.killed:  # while it has time to end, what it has to save may be on its cards
                raise EngineError(f'"{live.name}" is being ended.')
        except Exception as error:
            if not isinstance(error, CardError | EngineError):
                log.exception("container %s is not moved", live)
            live.stays = moving.stays_after(live, error)
            await self._bring_back(live, await self._mover.await_answers(moving.stopped(live), ANSWERS_WITHIN))
            raise Problem("cannot_swap", f"Its GPU memory could not be freed: {error}", 409) from error
        if live.finished:
            raise Problem("container_ended", f'"{live.name}" has ended.', 409)
        seconds, leased = clock.monotonic() - begun, {gpu: live.granted(gpu) for gpu in live.quota}
        for gpu in leased:
            live.note_peak(gpu)
        self._moved(live, "swapped_out", leased, seconds, why)
        self._store.container(live.id, gave_way=gave_way, gave_way_to=gave_way_to)
        live.gave_way, live.unanswered, live.was_out = gave_way, 0, True
        await self._is_out(live, cards)
        return f"{size(sum(leased.values()))} of GPU memory was freed in {clock.monotonic() - begun:.1f} s."

    async def _is_out(self, live: LiveContainer, cards: Sequence[str] = ()) -> None:
        held = sum(live.granted(gpu) for gpu in live.quota)
        since = {} if live.swap == Swap.COMING else {"swapped_at": self._store.clocks.now(live.id)}
        self._store.container(live.id, swapped=held, **since)
        await self._stage(live, Swap.OUT)
        if cards:
            await self.cards.assign(live, *cards)
        else:
            self._broker.swapped_out(live)
        self._free(live)

    def _free(self, live: LiveContainer) -> None:
        """Of what was begun on it nothing is left."""
        live.stuck, live.stays, live.silent_since = False, 0.0, None
        self._broker.update_paused(live)

    # ---- what is begun comes to its end ----

    def _begin(self, what: Coroutine[Any, Any, None]) -> None:
        self._under_way.begin(what, "swapping")

    def _later(self, live: LiveContainer, after: float = AGAIN) -> None:
        if due := self._due.get(live.id):
            due.cancel()
        loop = asyncio.get_running_loop()
        self._due[live.id] = loop.call_later(after, lambda: self._begin(self._settle(live)))

    def _next(self, live: LiveContainer) -> Action:
        core = self._broker.state.containers.get(live.id)
        return moves.next_step(Stage(live.swap), **moving.facts_of(live, core), unseen=bool(self._broker.unseen))

    async def _settle(self, live: LiveContainer) -> None:
        """The next step of one that is under nobody's hands, whatever it is found in."""
        async with live.moving:
            match self._next(live):
                case Action.ASK_BACK:
                    self._broker.swap_in(live, live.waited_since)
                case Action.CALL_OFF:
                    self._broker.swapped_out(live)
                case Action.WAIT:
                    live.silent_since = None
                    self._later(live)
                case Action.BRING_BACK | Action.LEND_TO_OTHERS as do:
                    silent: Mapping[int, CardError] = {}
                    if do is Action.BRING_BACK and live.swap == Swap.LEAVING:  # others have their turn meanwhile
                        silent = await self._mover.await_answers(moving.stopped(live))
                    async with self._transfer:
                        now = self._next(live)
                        if now is not do:
                            self._begin(self._settle(live))
                        elif do is Action.BRING_BACK:
                            await self._bring_back(live, silent)
                        elif await self._mover.are_out(list(live.sessions.values())):
                            await self._is_out(live)

    async def _bring_back(self, live: LiveContainer, silent: Mapping[int, CardError]) -> None:
        """In its turn: all of it that is away or stopped. Those that answer go on whatever the others do."""
        begun, had = clock.monotonic(), {gpu: live.granted(gpu) for gpu in live.quota}
        if live.is_out:
            await self._stage(live, Swap.COMING)
        elif not live.swap and moving.stopped(live):
            self._turns.bar(live.id, "moving")
            await self._turns.settled(live.id)
        errors = [*silent.values(), *await self.cards.before_restore(live)]
        for session in moving.stopped(live) if live.swap != Swap.COMING or not errors else ():
            try:
                if session.id not in silent:
                    await self._mover.back_in_turn(session, self._transfer)
            except CardError as error:
                errors.append(error)
                if live.swap == Swap.COMING:
                    break
        if errors:
            why_not = next((each for each in errors if each.is_final), errors[0])
            if live.swap == Swap.COMING and (cards := self.cards.where_it_was(live, why_not)):
                await self._is_out(live, cards)
            else:
                await self._not_yet(live, why_not)
        elif not live.finished:
            await self._lower_memory(live)
            was, stays = live.swap, live.stays
            if was == Swap.COMING:
                why = "It computes again." if live.gave_way == Mode.IDLE else ""
                self._moved(live, "swapped_in", had, clock.monotonic() - begun, why)
                await self.cards.after_restore(live, clock.monotonic() - begun)
                self._store.container(live.id, **NOT_SWAPPED)
                live.gave_way = ""
            await self._stage(live, "")
            for session in moving.present(live):  # of who came meanwhile an earlier scheduler may have held the page
                session.page.hold(False)
            self._free(live)
            if was == Swap.LEAVING:
                self._broker.tell(NotMoved(self._broker.now(), live.id, stays))
            elif was == Swap.COMING:
                self._broker.tell(CameBack(self._broker.now(), live.id))
                self._broker.tell(ActivityDetected(self._broker.now(), live.id))  # however long it was idle before
                self._broker.changed(live.id)

    def _moved(self, live: LiveContainer, kind: str, sizes: Mapping[str, int], seconds: float, why: str) -> None:
        """Writes down what was moved. `sizes`: bytes by GPU."""
        back = kind == "swapped_in"
        moving.say_moved(self._store, live, kind, sizes, f"{why} It took {seconds:.2f} s.".strip())
        self.speeds.note("back" if back else "out" if live.was_out else "first", sum(sizes.values()), seconds)
        self.moved()

    async def _not_yet(self, live: LiveContainer, error: CardError) -> None:
        """It is stopped on its card or out of it, and is tried again, ever later where the driver does not answer.

        What it was lent it keeps: some of its processes may be back already. What is lost ends it; what the driver
        refuses to bring back is not waited for: its owner decides, and it is tried again on a resume.
        """
        log.error("container %s is not back on its card, and will be later: %s", live, error)
        if error.is_final and error.state is not State.FAILED:
            moving.say_not_restored(self._store, live, error)
        live.stuck = live.stuck or bool(live.swap)
        self._broker.update_paused(live)
        if live.swap:  # it gets nothing until then, and others may be preempted meanwhile
            stays = inf if live.swap == Swap.LEAVING else STAYS
            self._broker.tell(NotMoved(self._broker.now(), live.id, stays))
        hung, now = error.why is Why.HUNG and bool(error.pid), clock.monotonic()  # else none could be asked
        if hung and live.silent_since is None:
            live.silent_since = now
        silent = now - (live.silent_since or now) if hung else 0.0
        if error.state is State.FAILED or (silent > GIVE_UP and not is_stopped(error.pid, STANDS)):
            log.error("container %s has lost its GPU memory: %s", live, error)
            await self._end(live, f"Its GPU memory was lost on the way to or from host memory: {error}"[:500])
        elif live.not_restored:
            self._begin(self._settle(live))  # its place may be others'
        else:
            self._later(live, min(max(AGAIN, silent), LONGEST))

    async def _lower_memory(self, live: LiveContainer) -> None:
        try:
            await self._engine.add_memory(live.engine_id, 0)
            live.raised = False
        except EngineError as error:
            log.warning("container %s keeps its raised limit of host memory for now: %s", live, error)
            self._later(live)

    async def _stage(self, live: LiveContainer, stage: str) -> None:
        """Returns once it is in the database."""
        live.swap = stage
        self._turns.bar(live.id, "moving", on=bool(stage))
        if live.finished:
            return
        self._store.container(live.id, swap=stage)
        while True:
            try:
                await self._store.durable()
            except DatabaseError as error:
                log.error("container %s: its swapping waits for the database: %s", live, error)
                await asyncio.sleep(FULL_AGAIN)
            else:
                return
