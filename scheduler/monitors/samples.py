"""Once a second, for the record: what everybody holds, and what has changed inside leases since the last event.

Use inside a lease sends no message, so its growth and shrinking are written down in bulk, as one event each second.
"""

from collections.abc import Mapping
from datetime import datetime

from scheduler import clock
from scheduler.gpus import Reading
from scheduler.monitors.turns.shares import Part, Shares
from scheduler.monitors.using import Used, Using
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store

NOTHING = Used()


class History:
    def __init__(self, broker: Broker, store: Store, shares: Shares, using: Using) -> None:
        self._broker, self._store, self._shares, self._using = broker, store, shares, using
        self._waited: dict[str, float] = {}

    def write(self, readings: Mapping[str, Reading]) -> None:
        at = clock.now().replace(microsecond=0)
        granted = dict.fromkeys(readings, 0)
        parts = self._shares.look(readings)
        for live in self._broker.live_containers.values():
            waited = self._waited_since_last(live)
            for gpu in live.quota:
                if gpu in readings:
                    granted[gpu] += live.granted(gpu)
                    self._sample(live, gpu, readings[gpu], at, waited, parts[live.id, gpu])
                    self._broker.records.use(live, gpu)
        for gpu, reading in readings.items():
            self._store.sample(
                None, gpu, at, used=reading.used, peak=reading.used, granted=granted[gpu],
                utilisation=reading.utilisation,
            )  # fmt: skip
        self._waited = {id_: waited for id_, waited in self._waited.items() if id_ in self._broker.live_containers}

    def _sample(self, live: LiveContainer, gpu: str, reading: Reading, at: datetime, waited: float, part: Part) -> None:
        used, busy = live.note_peak(gpu), reading.computed(live.pids_lately(self._broker.now()))
        self._store.claim(live.id, gpu, utilisation=None if busy is None else round(busy))
        self._store.sample(
            live.id, gpu, at, used=used, peak=used, granted=live.granted(gpu), utilisation=busy, suspended=waited,
            **part._asdict(), **self._using.now.get(live.id, NOTHING)._asdict(),
        )  # fmt: skip

    def _waited_since_last(self, live: LiveContainer) -> float:
        """Seconds of suspension since the last sample."""
        total = live.suspended_before
        if live.suspended_since is not None:
            total += self._broker.now() - live.suspended_since
        last = self._waited.get(live.id, total)
        self._waited[live.id] = total
        return max(0.0, total - last)
