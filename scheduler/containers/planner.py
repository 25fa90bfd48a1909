"""Starts planned launches: when their conditions hold and their whole quota is free, in the memory queue's own order.

What follows from what is decided in scheduler/core/planned/; what is written, and in which transactions, in
scheduler/store/planned_runs.py. This is the part between: it keeps a little of each open row of this node, hears of
ends, of memory that comes back and of what people change, and looks again then. A started run is a launch like any
other: its command is carried out by commands.py.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any

from django.db import Error

from scheduler import clock
from scheduler.containers.forecasts import time_limits
from scheduler.core import reserved
from scheduler.core.admission import size
from scheduler.core.events import ContainerEnded
from scheduler.core.forecast import forecast
from scheduler.core.planned import order
from scheduler.core.planned.conditions import awaited, begins, impossible
from scheduler.core.planned.order import Candidate, Queue
from scheduler.core.planned.progress import End, Progress, next_look, next_run
from scheduler.parts import is_set_within
from scheduler.shared import SharedParts
from scheduler.store import planned_runs
from scheduler.store.planned_runs import Never, Plan
from web.errors import Problem
from web.logs import ById

log = logging.getLogger(__name__)

LOOK_EVERY = 1.0  # seconds: whether people have changed something, or what runs on another node has ended
CHECK_EVERY = 3.0  # seconds: people who could have no more running, accounts that were disabled
AGAIN = 2.0  # seconds until a database is asked again that takes nothing
SLICE = 50  # rows that are taken in before others have their turn in the loop
SHOWN = 100  # of those that may start: their places and reasons are written


class Planner:
    def __init__(self, shared: SharedParts, launched: Callable[[], None]) -> None:
        """`launched`: there is a launch command."""
        self._store, self._broker, self._launched = shared.store, shared.broker, launched
        self._plans: dict[str, Plan] = {}
        self._children: dict[str, set[str]] = {}  # parent → those that begin after it
        self._runs: dict[str, str] = {}  # container that is under way → whose run it is
        self._ends: dict[str, End] = {}  # of parents
        self._over: list[tuple[str, End]] = []  # parents of which it is still to be followed what comes after them
        self._queue = Queue()
        self._times: list[tuple[float, str]] = []  # when to look at one again: seconds since 1970
        self._blocked: dict[str, tuple[str, str, list[str]]] = {}  # person → why nothing more may run: what, and where
        self._asked = set[str]()  # people of whom one more might run when that was asked, and of whom none began since
        self._shown: dict[str, tuple[int | None, str]] = {}
        self._woken = asyncio.Event()
        self._read, self._heard = True, set[str]()
        self._began, self._checked = False, -inf

    # ---- what is heard, in the loop's thread ----

    def wake(self) -> None:
        """People have planned or changed something."""
        self._read = True
        self._woken.set()

    def ended(self, container: str) -> None:
        """A container of this node has ended, or its launch was refused."""
        if container in self._runs or container in self._children:
            self._heard.add(container)
            self._woken.set()
        elif self._blocked or self._queue.known:
            self._woken.set()

    def promised(self) -> None:
        """One that stood in the memory queue has been served."""
        self._woken.set()

    def changed(self, container: str) -> None:
        """The memory of one has changed: when its last has come back there may be room."""
        if self._queue.known and container not in self._broker.live_containers:
            self._woken.set()

    # ---- the loop ----

    async def run(self) -> None:
        while True:
            try:
                await self._look()
            except Error as error:
                log.error("planned launches wait, the database: %s", error)
                self._read, self._began = True, False  # what was heard meanwhile is asked for anew
                self._call_off(self._runs)  # those are about to be there
                await asyncio.sleep(AGAIN)
                continue
            await is_set_within(self._woken, self._pause())

    def _pause(self) -> float:
        """Seconds until it is looked again without any hint: one may be lost, and time passes."""
        due = self._times[0][0] - clock.wall() if self._times else inf
        return max(0.0, min(LOOK_EVERY, due))

    async def _look(self) -> None:
        self._woken.clear()
        if self._store.away:
            self._call_off()
            return
        if self._read or await self._store.ask(planned_runs.is_unread, self._store.here):
            self._read = False
            await self._hear_of_changes()
        await self._hear_of_ends()
        await self._check()
        now = clock.wall()
        while self._times and self._times[0][0] <= now:
            if (plan := self._plans.get(heapq.heappop(self._times)[1])) is not None:
                await self._refresh(plan)
        await self._follow()
        await self._begin_all()
        await self._show()

    def _call_off(self, but: Collection[str] = ()) -> None:
        """What cannot begin waits for no memory, and has been promised none."""
        for each in [its for its in self._broker.state.containers.values() if its.stands_in and its.id not in but]:
            self._broker.tell(ContainerEnded(self._broker.now(), each.id))

    async def _hear_of_changes(self) -> None:
        """Raises Error."""
        here, every = self._store.here, not self._began
        plans, gone = await self._store.write(partial(planned_runs.read, here, every=every))
        for id_ in {*gone, *(self._plans.keys() - {plan.id for plan in plans} if every else ())}:
            self._forget(id_)
        for number, plan in enumerate(plans):
            self._take(plan)
            if number % SLICE == 0:
                await asyncio.sleep(0)  # programs ask for memory meanwhile
        parents = {each.parent for plan in plans for each in plan.after} - self._ends.keys()
        watched = parents | (self._runs.keys() if every else set())
        await self._take_ends(await self._ends_of(watched))
        self._began = True
        for number, plan in enumerate(plans):
            if plan.id in self._plans:
                await self._refresh(self._plans[plan.id])
            if number % SLICE == 0:
                await asyncio.sleep(0)
        await self._follow()

    def _take(self, plan: Plan) -> None:
        if (before := self._plans.get(plan.id)) is not None:
            plan.ready, plan.next = before.ready, before.next
            self._leave(before)
        self._plans[plan.id] = plan
        for each in plan.after:
            self._children.setdefault(each.parent, set()).add(plan.id)
        self._progress(plan, plan.progress)

    def _progress(self, plan: Plan, progress: Progress) -> None:
        """It stands so from now on."""
        for attempt in plan.progress.running.values():
            self._runs.pop(attempt.container, None)
        plan.progress = progress
        for attempt in progress.running.values():
            self._runs[attempt.container] = plan.id

    def _leave(self, plan: Plan) -> None:
        for each in plan.after:
            its = self._children.get(each.parent, set())
            its.discard(plan.id)
            if not its:
                self._children.pop(each.parent, None)
                self._ends.pop(each.parent, None)
        self._progress(plan, Progress())

    def _forget(self, id_: str) -> None:
        self._queue.drop(id_)
        if (plan := self._plans.pop(id_, None)) is not None:
            self._leave(plan)

    # ---- ends ----

    async def _hear_of_ends(self) -> None:
        """Of those reported, and of those that no report here names: on other nodes, or lost."""
        heard, self._heard = self._heard, set()
        watched = self._runs.keys() | (self._children.keys() - self._ends.keys() - self._plans.keys())
        elsewhere = {id_ for id_ in watched if id_ not in self._broker.live_containers}
        if heard:
            await self._store.flush()  # what has ended is in the database
        await self._take_ends(await self._ends_of(heard | elsewhere))
        if heard:
            await self._unblock()

    async def _ends_of(self, ids: Iterable[str]) -> dict[str, End]:
        ids = set(ids)
        return await self._store.ask(planned_runs.ends, ids) if ids else {}

    async def _take_ends(self, found: dict[str, End]) -> None:
        if ours := [(self._runs[id_], id_, end) for id_, end in found.items() if id_ in self._runs]:
            for id_, (progress, end) in (await self._store.write(planned_runs.record, ours, clock.wall())).items():
                self._stands(id_, progress, end)
                if id_ in self._plans:
                    await self._refresh(self._plans[id_])
        self._over += [(id_, end) for id_, end in found.items() if id_ in self._children]
        await self._follow()

    def _stands(self, id_: str, progress: Progress, end: End | None) -> None:
        """After something was written of it."""
        if (plan := self._plans.get(id_)) is None:
            return
        self._progress(plan, progress)
        if end is not None:
            self._forget(id_)
            self._over.append((id_, end))

    async def _follow(self) -> None:
        """Those that come after what has ended may begin now, or never; and so on down the chain."""
        while self._over:
            parent, end = self._over.pop()
            if parent in self._children:
                self._ends[parent] = end
            for child in list(self._children.get(parent, ())):
                if (plan := self._plans.get(child)) is not None:
                    await self._refresh(plan)

    async def _finish(self, plan: Plan, why: str = "") -> None:
        """Nothing more of it begins, unless people have changed it."""
        self._queue.drop(plan.id)
        if (found := await self._store.write(planned_runs.finish, plan.id, why)) is None:
            self.wake()
            return
        plan.cancelled = True
        self._stands(plan.id, *found)

    async def _check(self) -> None:
        if clock.monotonic() - self._checked < CHECK_EVERY or not self._plans:
            return
        self._checked = clock.monotonic()
        await self._unblock()
        for id_ in await self._store.ask(planned_runs.disabled, self._store.here):
            if (plan := self._plans.get(id_)) is not None and not plan.cancelled:
                await self._finish(plan, "Its owner's account is disabled.")
        await self._follow()

    # ---- what may start ----

    async def _refresh(self, plan: Plan) -> None:
        """Whether a run of it may begin now; if not, when to look again."""
        self._queue.drop(plan.id)
        if plan.cancelled:
            if not plan.progress.running:
                await self._finish(plan)
            return
        if why := impossible(plan.after, self._ends) or order.impossible(self._broker.state, plan.shape):
            await self._finish(plan, why)
            return
        now = clock.wall()
        at = begins(plan.begin_at, plan.held)
        if awaited(plan.after, self._ends) or at > now:
            plan.ready = None
            self._look_at(plan, at)
            return
        if plan.ready is None:
            waited = 0.0 if plan.after else max(0.0, now - max(plan.created_at, at))
            plan.ready = clock.monotonic() - waited
        if next_run(plan.progress, plan.count, plan.at_once, now) is None:
            self._look_at(plan, next_look(plan.progress))
        else:
            its = plan.id, plan.owner, plan.ready, plan.shape, plan.priority, plan.created_at, plan.next
            self._queue.put(Candidate(*its))

    def _look_at(self, plan: Plan, at: float) -> None:
        if clock.wall() < at < inf:
            heapq.heappush(self._times, (at, plan.id))

    async def _begin_all(self) -> None:
        """Puts those that may begin into the memory queue, and begins what has been served there. Other work is done
        between two."""
        while True:
            self._asked &= self._queue.people.keys()
            for person in sorted(self._queue.people.keys() - self._asked - self._blocked.keys()):
                first = self._queue.people[person][0]
                await self._ask(person, first.id, list(first.shape.gpus))  # else others would wait for it first
            stands = ((each.container, self._plans[each.id]) for each in self._queue.known.values())
            self._broker.planned = {id_: (plan.name, plan.shape.lasts) for id_, plan in stands}
            state = partial(getattr, self._broker, "state")
            for event in self._queue.steps(state, self._broker.now(), self._runs, self._blocked):
                self._broker.tell(event)
                await asyncio.sleep(0)
            if not (ready := self._queue.promised(self._broker.state)):
                break
            for candidate, gpus in ready:
                await self._begin(self._plans[candidate.id], gpus)

    async def _begin(self, plan: Plan, gpus: list[str]) -> None:
        try:
            made = await self._ask_to_begin(plan, gpus)
        except Never as never:
            await self._finish(plan, str(never))
            await self._follow()
        except Problem as problem:
            self._blocked[plan.owner] = problem.message, plan.id, gpus
        except Error:
            plan.next = str(planned_runs.new_id())  # what gave no answer may have begun all the same
            raise
        else:
            self._queue.drop(plan.id)
            self._asked.discard(plan.owner)
            if made is None:  # it is not what was read, as when people have changed it just now
                self._began = False
                self.wake()
                return
            container, progress = made
            log.info("container %s begins as planned", ById(str(container.pk)))
            plan.next = str(planned_runs.new_id())
            self._progress(plan, progress)
            self._launched()
            await self._refresh(plan)

    async def _ask_to_begin(self, plan: Plan, gpus: list[str], *, only_ask: bool = False) -> Any:
        """Raises Never or Problem, if it may not."""
        if (run := next_run(plan.progress, plan.count, plan.at_once, now := clock.wall())) is None:
            return None
        ask = partial(planned_runs.start, container_id=plan.next, only_ask=only_ask)
        return await self._store.write_by(ask, self._store.here, plan.id, run, gpus, now, self._store.require_name)

    async def _unblock(self) -> None:
        """People who may have more running again."""
        for person, (_, id_, gpus) in list(self._blocked.items()):
            await self._ask(person, id_, gpus)

    async def _ask(self, person: str, id_: str, gpus: list[str]) -> None:
        """Whether the person may have one more running, by the one that would be next."""
        try:
            if (plan := self._plans.get(id_)) is not None:
                await self._ask_to_begin(plan, gpus, only_ask=True)
        except Problem as problem:
            self._blocked[person] = problem.message, id_, gpus
            return
        except Never:
            pass  # it ends when it is its turn
        self._blocked.pop(person, None)
        self._asked.add(person)

    # ---- what people see ----

    async def _show(self) -> None:
        """The places of the first, and why they wait: what has changed of that."""
        shown = self._places() if self._queue.known else {}
        new = {id_: its for id_, its in shown.items() if self._shown.get(id_) != its}
        new |= {id_: (None, "") for id_ in self._shown.keys() - shown.keys() if id_ in self._plans}
        if new:
            await self._store.write(planned_runs.show, new)
        self._shown = shown

    def _places(self) -> dict[str, tuple[int | None, str]]:
        state = self._broker.state
        first = self._queue.in_order(self._queue.ranked(state), SHOWN)
        places: dict[str, tuple[int | None, str]] = {
            each.id: (place, self._why(each)) for place, each in enumerate(first, 1)
        }
        if first and (by := self._latest(first[0])):
            places[first[0].id] = (1, f"{places[first[0].id][1]} {by}")
        return places

    def _latest(self, first: Candidate) -> str:
        """By when there is room for the first at the latest, where time limits say it; a sentence, or nothing."""
        stands, state = self._broker.state.containers.get(first.container), self._broker.state
        if stands is None or stands.guaranteed:
            return ""
        others = order.without_those_that_wait(state)
        latest = forecast(others, stands.quota, time_limits(self._broker), person=first.owner).latest
        if latest is None:
            return ""
        at = clock.now() + timedelta(seconds=latest - self._broker.now() + 0.5)
        return f"At {at:%H:%M} UTC at the latest, by the time limits of those that run."

    def _why(self, each: Candidate) -> str:
        if each.owner in self._blocked:
            return self._blocked[each.owner][0]
        state, shape = self._broker.state, each.shape
        room = {gpu: reserved.free(state, gpu, each.owner) for gpu in shape.in_service(state)}
        cards = sorted(room.values(), reverse=True)
        there = cards[shape.count - 1] if len(cards) >= shape.count else 0
        needs = f"Starts when {size(shape.quota)} is free on {'one GPU' if shape.count == 1 else f'{shape.count} GPUs'}"
        if len(cards) < shape.count:
            return f"{needs}. A GPU that it needs is out of service."
        if there >= shape.quota:
            return "Starts after those before it."
        others = any(reserved.kept(state, gpu, each.owner) for gpu in room)
        return f"{needs} (now {size(max(0, there))}{', less what is reserved for others' * others})."
