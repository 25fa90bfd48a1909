"""Waiting for what another process or thread does, without guessing how long it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(condition: Callable[[], T], within: float = 10.0) -> T:
    """The first true value of `condition`, looked at every 10 ms. Fails after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"did not come about within {within} s"
        await asyncio.sleep(0.01)


def until(condition: Callable[[], T], within: float = 10.0) -> T:
    """The same for tests that are not asynchronous."""
    deadline = time.monotonic() + within
    while True:
        if value := condition():
            return value
        assert time.monotonic() < deadline, f"did not come about within {within} s"
        time.sleep(0.005)
