"""The channel of a host's scheduler: its messages mean "look again": at the commands, at people's
shares or at reservations, and nothing else."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from channels.consumer import AsyncConsumer  # type: ignore[import-untyped]
from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from channels.worker import Worker  # type: ignore[import-untyped]


class Hints(AsyncConsumer):  # type: ignore[misc]
    """`heard`, message type → call, must not raise: a worker drops what is queued when a handler does."""

    def __init__(self, heard: Mapping[str, Callable[[], None]]) -> None:
        self.heard = heard

    async def dispatch(self, message: dict[str, Any]) -> None:
        if call := self.heard.get(message.get("type", "")):  # any other message is ignored
            call()


async def listen(channel: str, heard: Mapping[str, Callable[[], None]]) -> None:
    """A Channels worker for one channel, in this loop, until cancelled."""
    worker = Worker(Hints.as_asgi(heard=heard), [channel], get_channel_layer())
    async with asyncio.TaskGroup() as both:  # neither goes on without the other
        both.create_task(worker.application_checker())
        both.create_task(worker.listener(channel))
