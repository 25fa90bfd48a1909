"""Waiting for what another process or thread does, without guessing how long it takes."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# Seconds; only a test that fails waits so long, and pytest ends it at 300. The start of an appliance has taken 120.
PATIENCE = 240.0


async def eventually(condition: Callable[[], T | Awaitable[T]], within: float = PATIENCE, every: float = 0.01) -> T:
    """The first true value of `condition`, which may be a coroutine function.

    Fails after `within` seconds; `every`: seconds from one look to the next.
    """
    deadline = time.monotonic() + within
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"did not come about within {within} s"
        await asyncio.sleep(every)


def until(condition: Callable[[], T], within: float = PATIENCE, every: float = 0.01) -> T:
    """The same for tests that are not asynchronous."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"did not come about within {within} s"
        time.sleep(every)


async def stopped(pid: int) -> None:
    """Returns when it stands still: SIGSTOP wakes one thread, and on a busy machine others go on until that runs."""
    os.kill(pid, signal.SIGSTOP)
    await eventually(lambda: stands(pid))


def stands(pid: int) -> bool:
    """Whether each of its threads is stopped."""
    return set(_states(pid)) == {"T"}


def _states(pid: int) -> Iterator[str]:
    """Of each of its threads."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            yield (thread / "stat").read_text().rpartition(") ")[2][0]
