"""The channel of a host's scheduler: its messages mean "look at the commands again", or at the orders of the web side
of another host (web/relay/), and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from channels.consumer import AsyncConsumer  # type: ignore[import-untyped]
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from channels.worker import Worker  # type: ignore[import-untyped]


class Hints(AsyncConsumer):  # type: ignore[misc]
    """`heard` and `relayed` must not raise: a worker drops what is queued when a handler does."""

    def __init__(self, heard: Callable[[], None], relayed: Callable[[], None]) -> None:
        self.heard, self.relayed = heard, relayed

    async def dispatch(self, message: dict[str, Any]) -> None:
        match message.get("type"):  # any other message is ignored
            case "wake":
                self.heard()
            case "relay":
                self.relayed()


async def listen(channel: str, heard: Callable[[], None], relayed: Callable[[], None]) -> None:
    """A Channels worker for one channel, in this loop, until cancelled."""
    worker = Worker(Hints.as_asgi(heard=heard, relayed=relayed), [channel], get_channel_layer())
    async with asyncio.TaskGroup() as both:  # neither goes on without the other
        both.create_task(worker.application_checker())
        both.create_task(worker.listener(channel))
