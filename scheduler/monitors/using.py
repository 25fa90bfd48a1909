"""What each container uses of the host's processors and RAM: read in a thread, from the kernel."""

import asyncio
from typing import NamedTuple

from scheduler import clock
from scheduler.engines.base import Engine
from scheduler.sessions.broker import Broker
from scheduler.store import Store

MIB = 1 << 20


class Used(NamedTuple):
    """As the columns are called. `cpus_used`: processors, of the time since the look before; None after the first."""

    cpus_used: float | None = None
    memory_used: int | None = None


class Using:
    """`now`: container → what it uses, of those that could be looked at last."""

    def __init__(self, engine: Engine, broker: Broker, store: Store) -> None:
        self.now: dict[str, Used] = {}
        self._engine, self._broker, self._store = engine, broker, store
        self._last: dict[str, tuple[float, float]] = {}  # container → when, and seconds of processors by then

    async def look(self) -> None:
        running = {t.engine_id: t.id for t in self._broker.live_containers.values() if t.engine_id and not t.finished}
        found = await asyncio.to_thread(self._engine.uses, list(running))
        at, before, self._last, self.now = clock.monotonic(), self._last, {}, {}
        for engine_id, use in found.items():
            id_ = running[engine_id]
            live = self._broker.live_containers.get(id_)
            if live is None or live.finished:
                continue  # it has ended meanwhile
            self._last[id_] = at, use.processor
            cpus = None
            if (last := before.get(id_)) and at > last[0]:
                # To what a person can tell apart: a row that looks the same is not written again.
                cpus = round(max(0.0, use.processor - last[1]) / (at - last[0]), 2)
            self.now[id_] = used = Used(cpus, use.memory // MIB * MIB)
            self._store.container(id_, **used._asdict())
