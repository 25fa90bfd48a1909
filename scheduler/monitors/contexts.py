"""What a context takes, measured again where it could not be at the start: a card that is full has no room for one."""

import asyncio

from scheduler.gpus import Gpus
from scheduler.store import Store

# Seconds. Where it can never be measured, as in a PID namespace of its own, each attempt takes a context's memory.
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 3600.0


class Contexts:
    def __init__(self, gpus: Gpus, store: Store) -> None:
        self._gpus, self._store = gpus, store

    async def run(self) -> None:
        """Until all is known."""
        pause = FIRST_PAUSE
        while self._gpus.unmeasured:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            for uuid in await self._gpus.measure_contexts():
                self._store.gpu(uuid, context=self._gpus.contexts[uuid])
