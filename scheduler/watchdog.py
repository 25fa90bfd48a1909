"""How late the loop is: each decision waits for whatever runs in it, so what runs too long is measured and logged.

The loop notes the time every BEAT seconds. A thread looks at that note; when it has grown old, it writes down what the
loop's thread is doing. The next beat tells how long that was, and how much of it the loop's thread was at work: the
rest, it waited for the kernel, or for a core that others had.
"""

import asyncio
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from scheduler import clock

log = logging.getLogger(__name__)

BEAT = 0.02  # seconds
LATE = 0.1  # seconds; from here on it is logged
ROOT = Path(__file__).resolve().parent.parent
LINES = 4  # lines of ours, the innermost
AT_WORK = "decisions came %.2f s late (time %d): the scheduler was busy with %s"
STOOD = (
    "decisions came %.2f s late (time %d), as this machine had no processor or disk free for the scheduler, in %s. Who "
    "asked for memory meanwhile waited so much longer; nothing is lost"
)


class Watchdog:
    """`measured` is called with each beat's lateness, in seconds. `worst`: the longest since `take_worst`."""

    def __init__(self, measured: Callable[[float], None] = lambda late: None) -> None:
        self.worst = 0.0
        self.times_late = 0
        self._measured = measured
        self._beat = clock.monotonic()
        self._worked = 0.0
        self._seen: str | None = None  # what ran when it was found late
        self._reported = 0

    async def run(self) -> None:
        """Until cancelled."""
        stop = threading.Event()
        self._note()
        thread = threading.Thread(target=self._watch, args=(threading.get_ident(), stop), name="watchdog", daemon=True)
        thread.start()
        try:
            while True:
                await asyncio.sleep(BEAT)
                self._come_back()
        finally:
            stop.set()

    def take_worst(self) -> float:
        worst, self.worst = self.worst, 0.0
        return worst

    def _note(self) -> None:
        self._beat, self._worked, self._seen = clock.monotonic(), time.thread_time(), None

    def _come_back(self) -> None:
        late, worked = clock.monotonic() - self._beat - BEAT, time.thread_time() - self._worked
        self.worst = max(self.worst, late)
        self._measured(max(0.0, late))
        if late >= LATE:
            self.times_late += 1
            if self.times_late & (self.times_late - 1) == 0:  # more and more rarely
                text = AT_WORK if worked >= late / 2 else STOOD
                log.warning(text, late, self.times_late, self._seen or "what was over by then")
        self._note()

    def _watch(self, thread: int, stop: threading.Event) -> None:
        while not stop.wait(LATE / 2):
            if self._seen is None and clock.monotonic() - self._beat - BEAT >= LATE / 2:
                self._seen = _doing(_frame_of(thread))


def _frame_of(thread: int) -> FrameType | None:
    """What runs there. Nothing is collected meanwhile: up to CPython 3.11.7 (its issue 106883) that could call Python
    code while the list of all threads is locked, and with any thread that ended then all stood still for ever.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread)
    finally:
        if collects:
            gc.enable()


def _doing(frame: FrameType | None) -> str:
    """Our own functions in which a thread is, the innermost first."""
    ours: list[str] = []
    while frame is not None and len(ours) < LINES:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
            ours.append(f"{frame.f_code.co_name} ({path.name}:{frame.f_lineno})")
        frame = frame.f_back
    return " in ".join(ours) or "Python itself"
