"""What a scheduler has running in the background: its parts, by name, with how often each is called; and single tasks.

A part that fails is logged and starts again. Standard library only: a part may look its own period up.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)

ONCE = float("inf")
RESTART = 1.0  # seconds
AGAIN = 10.0  # seconds in which a cancelled task has put its things in order

PERIODS = {
    "waits": 0.1,  # the precision of max_wait_seconds
    "use inside leases": 0.1,  # the longest that it goes unnoticed on a page: it sends no message
    "time limits": 0.5,
    "sign of life": 1.0,
    "what is reserved": 1.0,
    "audit anchor": 1.0,  # so much of the chain's end can be cut off unseen
    "forecasts": 1.0,
    "use of the host": 2.0,  # the kernel counts in hundredths, and 200 containers cost some milliseconds a look
    "leftovers": 5.0,
    "health": 5.0,  # disks and memory change all the time, and each change is written
    "housekeeping": 60.0,
    "usage": 60.0,  # what a scheduler that is killed has not written of it
}  # part → seconds from the end of one call to the next; the others run until they are cancelled


@dataclass(frozen=True, slots=True)
class Part:
    """`after`: seconds until the first call. `every`: instead of what PERIODS says."""

    name: str
    call: Callable[[], Awaitable[None] | None]
    after: float = 0.0
    every: float | None = None

    async def keep_going(self, ends: asyncio.Event) -> None:
        """`ends`: it is not to be called again. That it was cancelled is no such sign: a TaskGroup may leave one."""
        pause = self.after
        while not ends.is_set():  # a library may lose a cancellation to an error of its own
            await asyncio.sleep(pause)
            pause = RESTART
            try:
                if (called := self.call()) is not None:
                    await called
                if (period := self.every or PERIODS.get(self.name)) is None:
                    log.error("%s has ended; it starts again", self.name)
                else:
                    pause = period
            except Exception:
                log.exception("%s failed; it starts again", self.name)


class Background(set[asyncio.Task[Any]]):
    """Tasks that nobody awaits: kept until they end, as an event loop keeps none; what one raises is logged."""

    def begin(self, what: Coroutine[Any, Any, Any], name: str | None = None) -> None:
        self.keep(asyncio.create_task(what, name=name))

    def keep(self, task: asyncio.Task[Any]) -> None:
        self.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancels them and waits until all have ended; again, as a library may swallow a cancellation."""
        tasks = set(self)
        while tasks:
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=AGAIN)
            if tasks:
                names = ", ".join(sorted(task.get_name() for task in tasks))
                log.warning("not ended within %g s of being cancelled, cancelled again: %s", AGAIN, names)


@asynccontextmanager
async def running(parts: Iterable[Part]) -> AsyncIterator[None]:
    background, ends = Background(), asyncio.Event()
    for part in parts:
        background.begin(part.keep_going(ends), part.name)
    try:
        yield
    finally:
        ends.set()
        await background.close()


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for the event, and so long at most."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
