"""Reservations between the records and the core: what is in force or begins soon goes to the core, what lacks to
the records, and whoever is in the way of one that says so is ended.

A reservation's times are dates, by the database's clock. Once it has begun, its end follows a clock that cannot be set
and goes on while the host sleeps: so it lasts as long as it was meant to, whatever becomes of the date.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from django.db import DatabaseError

from scheduler import clock
from scheduler.containers.terminator import Terminator
from scheduler.core import reserved
from scheduler.core.events import ReservesChanged
from scheduler.core.reserved import giving
from scheduler.core.state import Reserve, State
from scheduler.parts import is_set_within
from scheduler.sessions.broker import Broker
from scheduler.store import Store
from web.services.booked.reservations import PLACED_AHEAD, Due

log = logging.getLogger(__name__)

HEARS = 60.0  # seconds between two looks at the records, unless a hint comes
HORIZON = PLACED_AHEAD.total_seconds()  # before a begin, from which on the core knows of it
WARNED_AHEAD = 900.0  # seconds before a begin from which on what will lack is reported
GRACE = 60.0  # seconds from SIGTERM to SIGKILL for who has to end


class Reservations:
    def __init__(self, broker: Broker, store: Store, ender: Terminator) -> None:
        self._broker, self._store, self._ender = broker, store, ender
        self._woken = asyncio.Event()
        self._begun: dict[tuple[int, datetime, datetime], float] = {}  # row, begin, end → the end, since the boot
        self._known: dict[tuple[str, str], Due] = {}  # reservation, GPU → as heard last

    def wake(self) -> None:
        """There is another one, or one less."""
        self._woken.set()

    async def start(self) -> None:
        """Before anything is decided."""
        await self._hear()

    async def run(self) -> None:
        while True:
            await is_set_within(self._woken, HEARS)
            self._woken.clear()
            await self._hear()

    async def _hear(self) -> None:
        try:
            begun = {row: begins for (row, begins, _), end in self._begun.items() if end > clock.boot()}
            found = await self._store.reservations.due(HORIZON, begun)
        except DatabaseError:
            return  # the store says so; what was heard last stays
        for row in {each.row for each in self._known.values()} - {each.row for each in found}:
            self._store.reservations.short(row, 0)
            self._store.reservations.over(row)
        self._known = {(each.id, each.gpu): each for each in found}
        reserves = tuple(self._reserves(found))
        if not (reserves or self._broker.state.reserves):
            return
        if refused := self._broker.ask(ReservesChanged(self._broker.now(), reserves)):
            log.error("the reservations in the database make no sense, and those before stay: %s", refused.explanation)

    def _reserves(self, found: Iterable[Due]) -> Iterable[Reserve]:
        date, now, boot = self._store.reservations.now(), self._broker.now(), clock.boot()
        begun = {}
        for each in found:
            key = each.row, each.begins, each.ends
            left = self._begun[key] - boot if key in self._begun else (each.ends - date).total_seconds()
            ahead = (each.begins - date).total_seconds()
            if ahead <= 0 or key in self._begun:
                begun[key] = boot + left
            card = self._broker.state.gpus.get(each.gpu)
            size = card.most if card and each.size is None else each.size or 0
            if left > 0 and size > 0:
                begins = now + (min(0.0, ahead) if key in begun else ahead)
                yield Reserve(each.id, each.gpu, size, each.people, begins, now + left, each.ends_others)
        self._begun = begun

    def look(self) -> None:
        """Once a second."""
        state = self._broker.state
        if not state.reserves:
            return
        for container, reserve in giving.in_the_way(state).items():
            if live := self._broker.live_containers.get(container):
                self._ender.want(live, reason=f"Its GPU memory is reserved: {reserve}."[:500], grace=GRACE)
        now, boot = self._broker.now(), clock.boot()
        for each in state.reserves:
            if (known := self._known.get((each.id, each.gpu))) is None:
                continue
            if each.begins <= now:
                self._begun.setdefault((known.row, known.begins, known.ends), boot + each.ends - now)
            self._store.reservations.short(known.row, lacking(state, each))


def lacking(state: State, reserve: Reserve) -> int:
    """Bytes: what of it others hold; shortly before it begins, what those that can be moved will not make up."""
    if not (reserve.is_kept or 0 < reserve.begins - state.now <= WARNED_AHEAD):
        return 0
    if reserve.begins <= state.now:
        return max(0, min(reserve.bytes, reserved.short(state, reserve.gpu)))
    then = replace(
        state, reserves=(*(each for each in state.reserves if each != reserve), replace(reserve, is_kept=True))
    )
    return max(0, reserved.short(then, reserve.gpu) - giving.movable(then, reserve.gpu))
