"""The scheduler's ear for hints: a channel layer that fails costs hints and nothing else."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from scheduler import worker
from scheduler.worker import Scheduler


class Broken:
    async def receive(self, channel: str) -> None:
        raise ConnectionError("Redis went away")


async def test_nothing_stays_behind_of_a_channel_layer_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "get_channel_layer", Broken)
    scheduler = Scheduler()
    for name in ("commands", "relay"):
        setattr(scheduler, name, SimpleNamespace(wake=lambda: None))
    scheduler.store = SimpleNamespace(channel="scheduler.here")  # type: ignore[assignment]
    before = asyncio.all_tasks()
    with pytest.raises(Exception, match=r"Redis|unhandled"):
        await scheduler._listen_to_hints()
    assert asyncio.all_tasks() == before
