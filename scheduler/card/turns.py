"""Plays the turns of computing on the cards: reports events to the core, and locks and unlocks as that decides.

    async with player.away(container, "moving"):     nothing of it is locked in here, and nothing will be

Locking is a container's: all its processes, at once, each with a deadline. While it is stopped, new processes of it are
locked as they are seen (`look`). What a container is asked comes one after the other (`_carry_out`), and no container
waits for another's answer. One that cannot be stopped or let go in time is reported, takes no turns for a while, and is
let go as soon as the driver answers.

Containers whose ranks wait for each other (groups.py) are one in here, by the name of the first of them.

Knows containers by id and processes by pid; monitors/turns/computing.py reports which there are, and who computes.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from scheduler import clock
from scheduler.card.gates import Gate
from scheduler.card.groups import Groups
from scheduler.card.guardian import Guardian
from scheduler.card.helper import CardError, CardHelper
from scheduler.card.part import Order, Part
from scheduler.card.processes import LOCK_WITHIN, UNLOCK_WITHIN, Processes
from scheduler.card.terms import Seen, Terms
from scheduler.core import turns as core
from scheduler.core.people.tree import Tree
from scheduler.core.turns import Mode, Rules, Standing, Turns
from scheduler.parts import Background, is_set_within
from web.errors import Problem
from web.logs import ById

CYCLE = 1.0  # seconds in which each that computes has its turn: see docs/turns.md
HUNG_FOR = 60.0  # seconds in which who could not be stopped takes no turns
PREPARED = 4  # workers
CLOSING = 3.0  # seconds in which everybody is let go at the end; the guardian and the workers see to the rest
HUNG, FOUND, EARLY, REGROUPS = "hung", "found", "early", "regroups"  # reasons to take no turns
log = logging.getLogger(__name__)


class TurnPlayer:
    """`pids` gives the host pids of a container's processes, `gates` their gates. `report` is called with a container
    and a sentence when it takes no turns, and with "" once it was stopped again.

    `failed`: those of which the first was reported, and not the second. Until then nothing shows that turns reach them.
    """

    def __init__(
        self,
        card: CardHelper,
        guardian: Guardian,
        rules: Rules | None = None,
        pids: Callable[[str], set[int]] = lambda container: set(),
        report: Callable[[str, str], None] = lambda container, why: None,
        gates: Callable[[str], Mapping[int, Gate]] = lambda container: {},
    ) -> None:
        self._card, self._guardian = card, guardian
        guardian.report_loss(self._unguarded)
        self._parts: dict[str, Part] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._later = Background()
        self._closing = False
        self._prepared = 0
        self._groups = Groups()
        self._early = True  # somebody of the scheduler before may still be there
        self.failed: set[str] = set()
        self.given = 0  # turns, to whoever
        self.turns = Turns(rules or Rules(cycle=CYCLE))
        self.pids, self.report, self.gates = pids, report, gates
        self.why_not = "The scheduler is starting."

    # ---- from outside ----

    async def start(self, modes: Mapping[str, Mode]) -> None:
        """Finds out whether this machine can do it. `modes`: of each card; all are shared where it cannot."""
        self.why_not = await self._card.why_not()
        if self.why_not:
            log.info("containers cannot take turns at computing: %s", self.why_not)
        for gpu, mode in modes.items():
            self._decide(core.CardSeen(self.now(), gpu, Mode.SHARED if self.why_not else mode))
        self._begin(self._wait_to_be_alone())

    async def _wait_to_be_alone(self) -> None:
        """Nobody is asked to stop before: whoever is to be paused, moved or ended would wait for that answer."""
        await self._card.alone()
        self._early = False
        for id_ in list(self._parts):
            self.bar(id_, EARLY, on=False)

    async def set_mode(self, gpu: str, mode: Mode) -> str:
        """A sentence on what is so from now on. Raises Problem where there can be no turns."""
        if mode is Mode.TURNS and self.why_not:
            raise Problem("cannot_turn", f"Containers cannot take turns here: {self.why_not}", 409)
        self._decide(core.CardSeen(self.now(), gpu, mode))
        if mode is Mode.TURNS:
            return "Containers that compute on it take turns from now on."
        return "Containers compute on it at once from now on, as the driver schedules them."

    def mode(self, gpu: str) -> Mode:
        card = self.turns.cards.get(gpu)
        return Mode.SHARED if card is None else card.mode

    def standing(self, container: str, gpu: str | None = None) -> Standing | None:
        """Seconds since it joined, on this card or all of its; None for one that has not, or has ended."""
        group = self._groups.of(container)
        if group not in self.turns.takers or (gpu is not None and gpu not in self.turns.takers[group].seats):
            return None
        return core.standing(self.turns, group, gpu)

    def divide(self, tree: Tree) -> None:
        """How cards are divided between people."""
        if tree != self.turns.tree:
            self._decide(core.PeopleChanged(self.now(), tree))

    def join(self, terms: Mapping[str, Terms], together: Mapping[str, str] = MappingProxyType({})) -> None:
        """All containers that there are. `together`: those that have their turns together → the first of them."""
        self.failed &= terms.keys()
        barred = self._regroup(together) if together != self._groups.first else []
        terms = self._groups.terms(terms)
        for came in [part for id_, part in self._parts.items() if id_ in terms and part.terms.gpus != terms[id_].gpus]:
            barred += came.barred  # it has come to another card, and joins there
            self._leave(came)
        for id_ in self._parts.keys() - terms.keys():
            self._leave(self._parts[id_])
        for id_, its in terms.items():
            part = self._parts.get(id_)
            if part is None:
                part = self._parts[id_] = Part(id_, its, self._processes(id_), self._carry_out)
                rules = its.weight, its.limit, its.priority, its.owner, its.across
                self._decide(core.Joined(self.now(), id_, its.gpus, *rules))
                self.bar(id_, EARLY, on=self._early)
            elif part.terms != its:
                part.terms = its
                self._decide(core.Changed(self.now(), id_, its.weight, its.limit, its.priority, its.across))
        for container, why in barred:
            self.bar(container, why)

    def charge(self, owner: str, gpu: str, seconds: float) -> None:
        """A person's container that has ended computed so long, and was not seen to while it was there."""
        self._decide(core.Charged(self.now(), owner, gpu, seconds))

    def owes(self, owner: str, gpus: Iterable[str]) -> float:
        """Seconds until new containers of this person may begin: they have had more than their share of a card."""
        return core.debt(self.turns, owner, gpus, self.now())

    def _regroup(self, together: Mapping[str, str]) -> list[tuple[str, str]]:
        """As soon as nothing of the groups that change is locked. Returns who is barred for what in them."""
        changed = [self._parts[group] for group in self._groups.changed(together) if group in self._parts]
        for part in changed:
            self.bar(part.id, REGROUPS)
        if not all(part.quiet.is_set() for part in changed):
            return []
        reasons = [(container, why) for part in changed for container, why in part.barred if why != REGROUPS]
        for part in changed:
            self._leave(part)
        self._groups.first = dict(together)
        return reasons

    def _processes(self, group: str) -> Processes:
        def pids(group: str) -> set[int]:
            return {pid for container in self._groups.members(group) for pid in self.pids(container)}

        def gates() -> dict[int, Gate]:
            return {
                pid: gate for container in self._groups.members(group) for pid, gate in self.gates(container).items()
            }

        return Processes(group, self._card, self._guardian, pids, gates)

    def bar(self, container: str, why: str, on: bool = True) -> None:
        """It takes no turns for this reason (or, not `on`, for this one no more), and is let go if it is stopped."""
        part, reason = self._part(container), (container, why)
        if part is None or (reason in part.barred) is on:
            return
        was = bool(part.barred)
        (part.barred.add if on else part.barred.discard)(reason)
        if was != bool(part.barred):
            event = core.Barred if part.barred else core.Admitted
            self._decide(event(self.now(), part.id))

    @contextlib.asynccontextmanager
    async def away(self, container: str, why: str) -> AsyncIterator[None]:
        """Within it nothing of the container is locked for a turn, and nobody is being asked about it.

        A process that does not answer is not waited for any longer than for a lock.
        """
        self.bar(container, why)
        try:
            await self.settled(container)
            yield
        finally:
            self.bar(container, why, on=False)

    async def settled(self, container: str) -> bool:
        """Waits until nothing of it is locked; whether that is so. Only one that is barred stays so."""
        part = self._part(container)
        if part is None or await is_set_within(part.quiet, LOCK_WITHIN + UNLOCK_WITHIN):
            return True
        log.warning("container %s does not answer, and something of it stays locked for now", ById(container))
        return False

    def see(self, computing: Mapping[str, Seen]) -> None:
        """Who computes, and on which of its cards; none: it rests. And looks for new processes of the stopped."""
        now = self.now()
        events = [
            core.Computes(now, id_, seen.gpus, seen.part, seen.seconds, seen.had, seen.unlocked)
            if seen.gpus
            else core.Rests(now, id_)
            for id_, seen in self._groups.seen(computing).items()
            if id_ in self._parts
        ]
        self._decide(*events)
        for part in self._parts.values():
            if part.processes.stops is not None and not (part.is_busy or part.barred) and part.processes.new():
                part.order(None)

    def prepare(self, processes: int) -> None:
        """So many may have to be stopped soon: whoever does that, and the guardian, are there by then."""
        wanted = min(processes, PREPARED)
        if wanted > self._prepared and not self.why_not and not self._closing:
            self._prepared = wanted
            self._begin(self._prepare(wanted))

    async def _prepare(self, workers: int) -> None:
        with contextlib.suppress(CardError):  # the error is reported when one is needed
            await self._guardian.watch([])
            await self._card.prepare(workers)

    def has_turn(self, container: str) -> bool:
        """And others wait for it."""
        return (standing := self.standing(container)) is not None and standing.has_turn

    def yields(self, container: str) -> None:
        """It has the turn, and seems to rest: `rests` answers a little later."""
        self._decide(core.Yields(self.now(), self._groups.of(container)))

    def rests(self, container: str) -> bool | None:
        """Whether nothing of it was on a card when it was stopped last; None while that is not known."""
        taker, part = self.turns.takers.get(self._groups.of(container)), self._part(container)
        if taker is None or part is None or part.is_busy or taker.yields:
            return None
        return not taker.where

    def is_stopped(self, container: str) -> bool:
        part = self._part(container)
        return part is not None and part.processes.stops is not None

    def free_in(self, container: str, begin: float, end: float) -> float:
        """Seconds between these two in which it was not locked."""
        part = self._part(container)
        return end - begin - (0.0 if part is None else part.processes.locked_in(begin, end))

    def hang(self, container: str, why: str) -> None:
        """It takes no turns for a while, for this reason, although it was stopped."""
        if (part := self._part(container)) is not None:
            self._hang(part, why)

    def release(self, container: str) -> None:
        """Lets go on what of it is found locked, though nobody of ours has. It takes no turns until then."""
        if (part := self._part(container)) is not None and not self.why_not:
            self.bar(part.id, FOUND)
            part.quiet.clear()
            self._begin(self._release(part))

    async def _release(self, part: Part) -> None:
        await part.lock_state(self._card)
        await self._until_free(part, FOUND)

    async def close(self) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        await self._later.close()  # what one of them was starting is ended by then
        leaving = [asyncio.create_task(part.let_go()) for part in self._parts.values()]
        if leaving:
            await asyncio.wait(leaving, timeout=CLOSING)
        # What has no answer is broken off only then: a worker that is left earlier forgets whom it has stopped.
        await asyncio.gather(self._guardian.close(), self._card.close())
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, *(part.cancel() for part in self._parts.values()), return_exceptions=True)

    @staticmethod
    def now() -> float:
        return clock.monotonic()

    def _part(self, container: str) -> Part | None:
        return self._parts.get(self._groups.of(container))

    # ---- the core ----

    def _decide(self, *events: core.Event) -> None:
        self.turns, effects = core.decide(self.turns, *events)
        for effect in effects:
            self._parts[effect.container].order(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closing and (when := core.wake(self.turns)) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(when, loop.time() + 0.001), self._tick)

    def _tick(self) -> None:
        self._decide(core.Ticked(self.now()))

    def _leave(self, part: Part) -> None:
        """It has ended, and all of its processes have."""
        del self._parts[part.id]
        self._decide(core.Left(self.now(), part.id))
        part.forget_orders()
        self._guardian.release(part.processes.locked)
        for pid in part.processes.locked:
            self._card.forget(pid)

    # ---- one container ----

    async def _carry_out(self, part: Part, order: Order) -> None:
        try:
            if isinstance(order, core.Go):
                await self._go(part)
            elif isinstance(order, core.Stop):
                await self._stop(part)
            elif part.processes.stops is not None and not part.barred:
                await self._stop_more(part)
        except Exception:
            log.exception("container %s: its turn", ById(part.id))
            self._hang(part, "The scheduler failed at its turn; its log has details.")
            # The others do not wait for an answer. The one that was not asked for is passed over.
            self._decide(core.NotStopped(self.now(), part.id), core.Started(self.now(), part.id))

    async def _stop(self, part: Part) -> None:
        why = "" if not part.barred and not self._closing else "It takes no turns now."
        why = why or await part.processes.lock()
        if not why:
            part.processes.stops = self.now()
            for container in self.failed.intersection(self._groups.members(part.id)):
                self.failed.discard(container)
                self.report(container, "")
            self._decide(core.Stopped(part.processes.stops, part.id))
            return
        if not await part.processes.unlock() or not part.barred:
            self._hang(part, why, part.processes.hung_for)
        self._decide(core.NotStopped(self.now(), part.id))

    async def _stop_more(self, part: Part) -> None:
        if why := await part.processes.lock():
            self._hang(part, why)

    async def _go(self, part: Part) -> None:
        if await part.processes.unlock():
            self.given += 1
        else:
            pid = min(part.processes.locked, default=0)
            self._hang(part, f"Process {pid} could not be resumed: it is frozen, or its driver hangs.")
        self._decide(core.Started(self.now(), part.id))

    def _hang(self, part: Part, why: str, seconds: float | None = None) -> None:
        """It takes no turns for a while: what nobody can stop cannot, and the others do not wait for it."""
        if (part.id, HUNG) in part.barred or part.id not in self._parts:
            return
        log.warning("container %s takes no turns at computing: %s", ById(part.id), why)
        for container in self._groups.members(part.id):
            self.failed.add(container)
            self.report(container, why)
        self.bar(part.id, HUNG)
        self._begin(self._until_free(part, HUNG, HUNG_FOR if seconds is None else seconds))

    def _unguarded(self, why: str) -> None:
        """Nobody would let go on who is stopped if this process died."""
        for part in list(self._parts.values()):
            if part.processes.locked:
                self._hang(part, why)

    async def _until_free(self, part: Part, why: str, after: float = 0.0) -> None:
        """`after`: seconds from when all of it is unlocked until it takes turns again."""
        await part.unlocked()
        await asyncio.sleep(after)
        if part.id in self._parts:
            self.bar(part.id, why, on=False)

    def _begin(self, what: Coroutine[Any, Any, None]) -> None:
        if self._closing:
            what.close()
            return
        self._later.begin(what, "turns")
