"""Looks at what /proc tells of a process, apart from everything else.

A process chooses how long its map is, and can hold the lock that the kernel takes to read it. So each look has a thread
of its own, of which nobody waits for the end but who asked; and those at one container's processes come one
after the other, so that no container has more than one thread. Even the end of the scheduler does not wait for them.
"""

import _thread
import asyncio
import contextlib
import errno
from collections.abc import Callable
from typing import TypeVar, cast
from weakref import WeakValueDictionary

T = TypeVar("T")


class Looks:
    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def look(self, container: str, call: Callable[[], T]) -> T:
        """What `call` returns or raises, when that container's earlier looks are over."""
        lock = self._locks.get(container)
        if lock is None:
            lock = self._locks[container] = asyncio.Lock()
        async with lock:
            return await detached_thread(call)


async def detached_thread(call: Callable[[], T], too_late: Callable[[T], object] | None = None) -> T:
    """What `call` returns or raises, from a thread that even the end of the process does not wait for.

    `too_late` is given what it returns when nobody waits for that any more. Raises OSError where no thread can be
    started.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, failed: BaseException | None) -> None:
        if done.done():
            if failed is None and too_late is not None:
                too_late(cast("T", result))
            return
        if failed is not None:
            done.set_exception(failed)
        else:
            done.set_result(cast("T", result))

    def run() -> None:
        result, failed = None, None
        try:
            result = call()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, result, failed)

    try:
        _thread.start_new_thread(run, ())  # Thread.start would wait here until it runs
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "the host lets no thread be started") from error
    return await done
