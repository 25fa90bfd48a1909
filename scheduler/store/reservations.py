"""Reservations on this host's cards, as the database has them; and what lacks of them, which it records."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from scheduler.store.database import Here
from scheduler.store.usage import UsageRecords
from scheduler.store.write_behind import WriteBehind
from web.models import ReservedGpu
from web.services.booked.reservations import Due, due


class ReservationRecords:
    def __init__(self, behind: WriteBehind, here: Here, usage: UsageRecords) -> None:
        self._behind, self._here, self._usage = behind, here, usage

    def now(self) -> datetime:
        """By the database's clock, as far as this host knows it: the same for all hosts."""
        return self._usage.now()

    async def due(self, horizon: float, begun: Mapping[int, datetime]) -> list[Due]:
        """Those in force, and those that begin within so many seconds. `begun`: row → begin, of those that are in force
        already. Raises DatabaseError."""
        now, gpus = self.now(), list(self._here.gpus.values())
        return await self._behind.ask(due, gpus, now, now + timedelta(seconds=horizon), begun)

    def short(self, row: int, size: int) -> None:
        """Bytes that lack, or will lack when it begins. `row`: of ReservedGpu."""
        self._behind.put(ReservedGpu, row, {"short": size})

    def over(self, row: int) -> None:
        self._behind.forget_row((ReservedGpu, row))
