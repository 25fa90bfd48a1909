"""Threads for calls that block, all of them started before the first call.

A host may refuse another thread at any moment. `ThreadPoolExecutor` starts its threads as calls come, and puts a call
into its queue before it tries: one that was refused for want of a thread is made all the same, later, by another one.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

ASIDE = 8  # threads for asyncio.to_thread


def pool(size: int, name: str) -> ThreadPoolExecutor:
    """With so many threads. Raises RuntimeError where the host does not let them be started."""
    threads, all_there = ThreadPoolExecutor(size, thread_name_prefix=name), Barrier(size)
    try:
        for _ in range(size):
            threads.submit(all_there.wait)  # nobody is idle, so that each gets a thread of its own
    except RuntimeError:
        all_there.abort()
        threads.shutdown(wait=False, cancel_futures=True)
        raise
    return threads


def need_no_more(loop: asyncio.AbstractEventLoop) -> None:
    """Neither asyncio.to_thread nor starting a process starts a thread in this loop from now on.

    Before Python 3.12 each process had one that waits for it: started after the process, which ran on unknown if that
    failed.
    """
    loop.set_default_executor(pool(ASIDE, "aside"))
    if sys.version_info < (3, 12):
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
