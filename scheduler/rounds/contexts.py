"""What a context takes, measured again where it could not be at the start: a card that is full has no room for one."""

from __future__ import annotations

import asyncio

from scheduler.gpus import Gpus
from scheduler.store import Store

EVERY = 30.0  # seconds


class Contexts:
    def __init__(self, gpus: Gpus, store: Store) -> None:
        self._gpus = gpus
        self._store = store

    async def run(self) -> None:
        while self._gpus.unmeasured:
            await asyncio.sleep(EVERY)
            for uuid in await self._gpus.measure_contexts():
                self._store.gpu(uuid, context=self._gpus.contexts[uuid])
        await asyncio.Event().wait()  # all is known
