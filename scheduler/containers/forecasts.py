"""What each of those who wait waits for: whose end, by when where that can be known, or whom somebody has to resume.

The core plays on from the present state (`core/forecast.py`), end by end, in pieces so short that no decision waits for
it. When somebody ends is known by time limits, and guessed by how long the same job of the same person took before.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from statistics import median
from typing import Any

from django.db import DatabaseError

from scheduler import clock
from scheduler.containers import placement
from scheduler.core.forecast import STEPS, GoesOn, forecast, forecasts, next_after
from scheduler.core.people.standing import say
from scheduler.core.state import Request, State
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store
from web.errors import Problem
from web.models import ExpectedBy

AGAIN = 5.0  # seconds, where nothing has changed but the time
WORK = 0.1  # seconds of computing in one look
RUNS = 2  # earlier ones at the least, for a guess
NAMED = 3  # of those whose ends are awaited
NO_END = (
    "It does not fit even when all other containers have ended: lower its quota, or free the GPU of other programs."
)
TOO_FAR = "Goes on after those before it in the queue."


@dataclass(frozen=True, slots=True)
class Expected:
    """`sentence` is for people; `at` is None if nobody can know, else `by` is what it rests on."""

    sentence: str
    at: datetime | None = None
    by: str = ""


class Forecasts:
    """`expected`: container → what it waits for, of `queue` as it was when that was found out."""

    def __init__(self, broker: Broker, store: Store) -> None:
        self._broker, self._store = broker, store
        self.expected: Mapping[str, Expected] = {}
        self.queue: object = None
        self._looked = -AGAIN
        self._containers: object = None
        self._runs: dict[str, Sequence[float]] = {}  # container → seconds that earlier runs of the same job took

    async def look(self) -> None:
        state = self._broker.state
        if not any(request.suspended for request in state.waiting):
            self.expected = {}
            return
        same = state.waiting is self.queue and state.containers is self._containers
        if same and clock.monotonic() - self._looked < AGAIN:
            return
        paused = [name for name, container in state.containers.items() if container.paused]
        try:
            by = await self._store.records.paused_by(paused)
            await self._know(state)
        except DatabaseError:
            return  # the store says so; what was found out last stays
        found = {name: Expected(f"Paused by {by.get(name, 'gpushare')}: resume it.") for name in paused}
        ends, guessed, lasts = self._ends(state)
        spent, seen, begun = 0.0, 0, time.perf_counter()
        for step in forecasts(state, ends, lasts):
            if isinstance(step, GoesOn):
                found.setdefault(step.container, self._expected(step, guessed, by))
                continue
            seen, spent = seen + 1, spent + time.perf_counter() - begun
            if spent > WORK:
                break
            await asyncio.sleep(0)
            begun = time.perf_counter()
        to_its_end = spent <= WORK and seen < STEPS
        for request in state.waiting:
            found.setdefault(request.container, Expected(NO_END if to_its_end else TOO_FAR))
        self.expected, self.queue, self._containers = found, state.waiting, state.containers
        self._looked = clock.monotonic()

    async def _know(self, state: State) -> None:
        """Looks up the earlier runs of everybody on a GPU that somebody waits for, once for each."""
        live_containers = self._broker.live_containers
        self._runs = {id_: runs for id_, runs in self._runs.items() if id_ in live_containers}
        wanted = {name for request in state.waiting for name in state.gpus[request.gpu].members}
        if new := [name for name in wanted if name in live_containers and name not in self._runs]:
            self._runs.update(await self._store.records.earlier_runs(new))

    def _ends(self, state: State) -> tuple[dict[str, float], set[str], dict[str, float]]:
        """When who ends, on the state's clock; for whom that is a guess; and how long those go on who wait."""
        ends, waiting = time_limits(self._broker), {request.container for request in state.waiting}
        guessed, lasts = set[str](), dict[str, float]()
        for name, runs in self._runs.items():
            live = self._broker.live_containers.get(name)
            left = _left(live, runs) if live else None
            if left is None:
                continue
            if name in waiting:
                lasts[name] = left
                guessed.add(name)
            elif self._broker.now() + left < ends.get(name, float("inf")):
                ends[name] = self._broker.now() + left
                guessed.add(name)
        return ends, guessed, lasts

    def _expected(self, found: GoesOn, guessed: set[str], by: Mapping[str, str]) -> Expected:
        names = self._broker.names
        who = [names.get(each, "one that has ended") for each in found.after]
        if found.paused and len(found.after) == 1:
            return Expected(f"{who[0]} is paused by {by.get(found.paused[0], 'gpushare')}: resume it.")
        sentence = f"Next when {who[0]} ends" if len(who) == 1 else f"Goes on when {_listed(who)} have ended"
        if found.paused:
            held = " and ".join(
                f"{names[each]} is paused by {by.get(each, 'gpushare')}" for each in found.paused[:NAMED]
            )
            return Expected(f"{sentence}; {held}: resume it.")
        if found.at is None:
            return Expected(f"{sentence}.")
        at = clock.now() + timedelta(seconds=found.at - self._broker.now())
        at = (at + timedelta(seconds=0.5)).replace(microsecond=0)  # found out again, it is the same
        guesses = [each for each in found.after if each in guessed]
        if not guesses:
            return Expected(f"{sentence}, at {at:%H:%M} UTC at the latest.", at, ExpectedBy.LIMITS)
        runs = self._runs[guesses[-1]]
        rests = f"{len(runs)} earlier runs took {_span(runs)}" if len(who) == 1 else "going by earlier runs"
        return Expected(f"{sentence}, at about {at:%H:%M} UTC: {rests}.", at, ExpectedBy.EARLIER_RUNS)


def _left(live: LiveContainer, runs: Sequence[float]) -> float | None:
    """Seconds until it ends if it takes as long as the earlier ones; None if there are too few, or it takes longer."""
    if len(runs) < RUNS:
        return None
    ran = 0.0
    if live.started_at is not None:
        began = live.started_at - timedelta(seconds=live.clock_ahead)
        ran = (clock.now() - began).total_seconds() - live.suspended_before
    left = median(runs) - ran
    return left if left > 0 else max(runs) - ran if max(runs) > ran else None


def _listed(names: Sequence[str]) -> str:
    if len(names) > NAMED:
        return f"{', '.join(names[: NAMED - 1])} and {len(names) - NAMED + 1} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _span(seconds: Sequence[float]) -> str:
    short, long = (round(each / 60) for each in (min(seconds), max(seconds)))
    if long < 2:
        return f"{min(seconds):.0f} to {max(seconds):.0f} s"
    return f"{short} to {long} min" if short < long else f"{long} min"


def foresee(broker: Broker, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The answer as JSON (`earliest` in seconds from now), and the sentence for people. Raises Problem."""
    state, quota = broker.state, int(arguments["gpu_memory"])
    asked: int | list[str] = arguments.get("gpus", 1)
    person = str(arguments.get("owner", ""))
    lasts = arguments.get("ttl_seconds")
    gpus = placement.choose(state, asked, quota, owner=person, lasts=lasts) if isinstance(asked, int) else asked
    names = broker.names
    heads = {gpu: idle(broker, gpu) for gpu in gpus}
    found = forecast(state, dict.fromkeys(gpus, quota), time_limits(broker), heads, names, person=person or None)
    if not found.possible:
        raise Problem("over_capacity", found.explanation, 400, "gpu_memory")
    # First those in the queue, then those who hold the memory; nobody twice.
    behind = [each for each in dict.fromkeys((*found.behind, *found.holders)) if each in broker.live_containers]
    earliest = None if found.latest is None else max(0.0, found.latest - broker.now())
    message = found.explanation if found.fits or found.place is None else f"{say(found.place)} {found.explanation}"
    return {"fits": found.fits, "behind": behind, "earliest": earliest, "message": message}, message


def turn_of(broker: Broker, request: Request) -> str:
    """Says "Next when train ends.", and by when at the latest if that is known; nothing if no single end is enough."""
    ends = time_limits(broker)
    name = next_after(broker.state, request, ends)
    live = broker.live_containers.get(name) if name else None
    if live is None:
        return ""
    if live.id not in ends:
        return f"Next when {live.name} ends."
    latest = clock.now() + timedelta(seconds=ends[live.id] - broker.now())
    return f"Next when {live.name} ends, at {latest:%H:%M} UTC at the latest."


def time_limits(broker: Broker) -> dict[str, float]:
    """By when time limits end containers, on the state's clock. One that has not started yet has all its time."""
    now, wall = broker.now(), clock.now()
    ends = {id_: now + lasts for id_, (_, lasts) in broker.planned.items() if lasts < inf}
    for live in broker.live_containers.values():
        if live.ttl is not None:
            own = wall + timedelta(seconds=live.clock_ahead)  # as its own clock stands
            ends[live.id] = now + live.ttl - (own - (live.started_at or own)).total_seconds()
    return ends


def idle(broker: Broker, gpu: str) -> int:
    """Headroom that a take-back would make free, in bytes. What a guaranteed container gives back stays reserved."""
    return sum(
        session.leases[gpu].headroom
        for live in broker.live_containers.values()
        if gpu in live.quota and not broker.state.containers[live.id].guaranteed
        for session in live.sessions.values()
    )
