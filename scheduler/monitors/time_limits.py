"""Ends containers whose time is over: a warning, then SIGTERM, then SIGKILL."""

from scheduler.containers.registry import Containers
from scheduler.containers.terminator import Terminator
from scheduler.parts import PERIODS
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store
from web.models import AllocationEvent

WARNING = 60.0  # seconds before the end; a tenth of the whole time if that is less
GRACE = 10.0  # seconds from SIGTERM to SIGKILL


class TimeLimits:
    def __init__(self, ender: Terminator, containers: Containers, store: Store) -> None:
        self._ender, self._containers, self._store = ender, containers, store
        self.warned: set[str] = set()

    async def start(self) -> None:
        """Learns who was warned by an earlier scheduler. Raises DatabaseError."""
        self.warned |= {id_ for id_, _ in await self._store.records.reported(AllocationEvent.Kind.WARNED)}

    def look(self) -> None:
        living = self._containers.all()
        for live in living:
            self._look(live)
        self.warned &= {live.id for live in living}

    def _look(self, live: LiveContainer) -> None:
        if live.ttl is None or live.started_at is None or live.finished:
            return
        left = live.ttl - (self._store.clocks.now(live.id) - live.started_at).total_seconds()
        if left <= 0:
            self._ender.want(live, reason=f"Its time limit of {live.ttl:g} s was reached.", grace=GRACE)
        elif left <= min(WARNING, max(live.ttl / 10, 2 * PERIODS["time limits"])) and live.id not in self.warned:
            self.warned.add(live.id)
            self._store.event("warned", live.id, detail=f"It will be ended in {left:.0f} s, at its time limit.")
