"""A console passes no more than its container's budget: its output goes through the loop that decides for everybody."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler.containers import consoles as module
from scheduler.containers.consoles import Console
from scheduler.engines.base import Output


class Screen:
    """What writes without an end: so many pieces of 100 bytes, and then it ends."""

    def __init__(self, pieces: int) -> None:
        self.left = pieces

    async def read(self) -> tuple[Output, bytes]:
        self.left -= 1
        return Output.OUT, b"x" * 100 if self.left >= 0 else b""

    async def close(self) -> None: ...


class Clock:
    """Time goes on only where the console waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "clock", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(module.asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("pieces", "seconds"), [(10, 0), (50, 4)], ids=["a second's worth", "five seconds' worth"])
async def test_a_console_reads_its_container_no_faster_than_its_budget(
    monkeypatch: pytest.MonkeyPatch, pieces: int, seconds: float
) -> None:
    monkeypatch.setattr(module, "BYTES_A_SECOND", 1000)
    monkeypatch.setattr(module, "FIRST", 0.0)
    clock = Clock(monkeypatch)
    await asyncio.wait_for(Console(cast(Any, Screen(pieces))).run(), 60)
    assert clock.now == pytest.approx(seconds, abs=0.2)
