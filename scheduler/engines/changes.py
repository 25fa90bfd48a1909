"""What an engine has seen, as a stream without repetitions.

Engines look again far more often than things change (events, a regular reconciliation, our own calls), so what they
see goes through here: a status equal to the last one of its container is dropped. That makes duplicate and
out-of-order events harmless, because every status is what the engine *looks like now*, never what an event says.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace

from scheduler.engines.base import Condition, Status


class Changes:
    def __init__(self) -> None:
        self._last: dict[str, Status] = {}
        self._queue: asyncio.Queue[Status | None] = asyncio.Queue()

    def see(self, status: Status) -> None:
        if self._last.get(status.id) == status:
            return
        if status.condition is Condition.GONE:
            if self._last.pop(status.id, None) is None:
                return  # never seen, or already reported
        else:
            self._last[status.id] = status
        self._queue.put_nowait(status)

    def looked(self, before: Mapping[str, Status], found: Iterable[Status]) -> None:
        """Tells what a look at all containers has found that began when `before` was known (`snapshot`).

        Who was known before and was not found is gone. A look takes a while: of a container that something was reported
        about meanwhile, a launch or a kill, it knows nothing.
        """
        now = {status.id: status for status in found}
        for id_ in before.keys() | now.keys():
            if self._last.get(id_) is before.get(id_):
                self.see(now[id_] if id_ in now else replace(before[id_], condition=Condition.GONE))

    def snapshot(self) -> dict[str, Status]:
        """The last status of every container that is not gone, as of now."""
        return dict(self._last)

    def gone_from_engine(self, engine_id: str) -> None:
        for status in self.known():
            if status.engine_id == engine_id:
                self.see(replace(status, condition=Condition.GONE))

    def known(self) -> list[Status]:
        """The last status of every container that is not gone."""
        return list(self._last.values())

    def last(self, id_: str) -> Status | None:
        return self._last.get(id_)

    def close(self) -> None:
        self._queue.put_nowait(None)

    def drain(self) -> list[Status]:
        """What the stream has not handed out yet, in its order; it will not then."""
        found = []
        while not self._queue.empty():
            if (status := self._queue.get_nowait()) is None:
                self.close()
                break
            found.append(status)
        return found

    async def stream(self) -> AsyncIterator[Status]:
        while (status := await self._queue.get()) is not None:
            yield status
