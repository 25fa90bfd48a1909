"""Waiting for what another process or thread does, without guessing how long it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Seconds; only a test that fails waits so long, and on a busy machine the start of a process may take twenty.
PATIENCE = 60.0


async def eventually(condition: Callable[[], T], within: float = PATIENCE) -> T:
    """The first true value of `condition`, looked at every 10 ms. Fails after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"did not come about within {within} s"
        await asyncio.sleep(0.01)


def until(condition: Callable[[], T], within: float = PATIENCE, every: float = 0.01) -> T:
    """The same for tests that are not asynchronous. `every`: seconds from one look to the next."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"did not come about within {within} s"
        time.sleep(every)
