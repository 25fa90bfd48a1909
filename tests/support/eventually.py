"""Waiting for what another process or thread does, without guessing how long it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Seconds; only a test that fails waits so long, and on a busy machine the start of a process may take twenty.
PATIENCE = 60.0


async def eventually(condition: Callable[[], T], within: float = PATIENCE, every: float = 0.01) -> T:
    """The first true value of `condition`. Fails after `within` seconds; `every`: seconds from one look to the next."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
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
