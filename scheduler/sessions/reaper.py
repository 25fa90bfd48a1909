"""Waits until the card no longer shows the processes that have died: the driver frees memory a little after death."""

import asyncio
import logging
from collections.abc import Callable

import pynvml

from scheduler import clock
from scheduler.gpus import Gpus
from scheduler.parts import is_set_within
from scheduler.sessions.live_containers import Session

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.05
PATIENCE = 60.0  # seconds; after that its memory is foreign, which takes it off the card's capacity


class Reaper:
    """`gone` is called once for each session that was added, when nothing of it is left on its GPUs."""

    def __init__(self, gpus: Gpus, gone: Callable[[Session], None]) -> None:
        self._gpus, self._gone = gpus, gone
        self._dying: dict[Session, float] = {}
        self._more = asyncio.Event()

    def add(self, session: Session) -> None:
        self._dying[session] = clock.monotonic()
        self._more.set()

    async def run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            await self._more.wait() if not self._dying else await is_set_within(self._more, pause)
            pause = FIRST_PAUSE if self._more.is_set() else min(2 * pause, LONGEST_PAUSE)
            self._more.clear()
            await self._look()

    async def _look(self) -> None:
        # Only those who died before the look: a later death may not show in it yet.
        dying = dict(self._dying)
        shown: dict[str, set[int]] = {}
        for gpu in {gpu for session in dying for gpu in session.leases}:
            try:
                shown[gpu] = set(await self._gpus.processes(gpu))
            except pynvml.NVMLError as error:
                log.warning("GPU %s does not tell its processes: %s", gpu, error)
        for session, since in dying.items():
            late = clock.monotonic() - since > PATIENCE
            if late:
                log.warning("process %d is gone for %.0f s, but NVML still shows it", session.pid, PATIENCE)
            if late or all(gpu in shown and session.pid not in shown[gpu] for gpu in session.leases):
                del self._dying[session]
                self._gone(session)
                await asyncio.sleep(0)  # a thousand may have died at once: what each costs grows with their number
