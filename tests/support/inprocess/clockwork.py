"""An event loop on virtual time: when nothing is ready and no thread is at work, it is the time of the next timer."""

import _thread
import asyncio
import contextlib
import selectors
import time
from collections.abc import Callable
from typing import Any

from scheduler import clock


class Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.loop.at_work or timeout is None:
            return super().select(None)  # a thread wakes the loop; pytest's own limit ends what waits for nothing
        self.loop.leap(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`at_work`: calls in threads that have not come back to the loop."""

    def __init__(self) -> None:
        self.at_work = 0
        self._now = 1000.0
        selector = Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def leap(self, seconds: float) -> None:
        """So many pass at once: timers that were due meanwhile are due once."""
        self._now += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        self.at_work += 1
        try:
            future = super().run_in_executor(executor, func, *args)
        except BaseException:
            self.at_work -= 1
            raise
        future.add_done_callback(self._back)
        return future

    def _back(self, _: object = None) -> None:
        self.at_work -= 1

    async def shutdown_default_executor(self, *args: Any) -> None:
        self.at_work += 1
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self.at_work -= 1

    def start_new_thread(self, run: Callable[..., None], args: tuple[Any, ...]) -> None:
        """For `scheduler.sessions.looks`, whose threads are no executor's."""

        def counted() -> None:
            try:
                run(*args)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    self.call_soon_threadsafe(self._back)

        self.at_work += 1
        _thread.start_new_thread(counted, ())


class VirtualClock(clock.Source):
    """All three of the host's clocks go with the loop; `wall` begins at the real time, and `ahead` sets it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._epoch = time.time() - loop.time()
        self.ahead = 0.0

    def wall(self) -> float:
        return self._epoch + self._loop.time() + self.ahead

    def boot(self) -> float:
        return 1e5 + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()
