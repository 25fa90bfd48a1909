"""An event loop on virtual time: when nothing is ready and no thread is at work, it is the time of the next timer."""

import _thread
import asyncio
import contextlib
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
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


class _Handed:
    """An executor, and the call that it was handed."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, *words: Any) -> Future[Any]:
        self.call = self._executor.submit(*words)
        return self.call


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
        if executor is None and (executor := self._default_executor) is None:
            executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
            self.set_default_executor(executor)
        handed = _Handed(executor)
        future = super().run_in_executor(handed, func, *args)
        self.at_work += 1
        # Not when the future is done: who asked may be cancelled while the call goes on.
        handed.call.add_done_callback(self._ended)
        return future

    def _ended(self, _: object = None) -> None:
        """In whichever thread; the loop may have ended meanwhile."""
        with contextlib.suppress(RuntimeError):
            self.call_soon_threadsafe(self._back)

    def _back(self) -> None:
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
                self._ended()

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
