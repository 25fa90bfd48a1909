"""The scheduler's ear for hints: a channel layer that fails costs hints and nothing else."""

import asyncio

import pytest

from scheduler import hints


class Broken:
    async def receive(self, channel: str) -> None:
        raise ConnectionError("Redis went away")


async def test_nothing_stays_behind_of_a_channel_layer_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "get_channel_layer", Broken)
    before = asyncio.all_tasks()
    with pytest.raises(Exception, match=r"Redis|unhandled"):
        await hints.listen("scheduler.here", heard={})
    assert asyncio.all_tasks() == before
