"""The channel of a host's scheduler: its messages mean "look at the commands again", or at the orders of the web side
of another host (web/relay/), and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from channels.consumer import AsyncConsumer  # type: ignore[import-untyped]


class Hints(AsyncConsumer):  # type: ignore[misc]
    """`heard` and `relayed` must not raise: a worker drops what is queued when a handler does."""

    heard: Callable[[], None] = staticmethod(lambda: None)

    relayed: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, heard: Callable[[], None], relayed: Callable[[], None]) -> None:
        self.heard, self.relayed = heard, relayed

    async def wake(self, message: dict[str, Any]) -> None:
        self.heard()

    async def relay(self, message: dict[str, Any]) -> None:
        self.relayed()

    async def dispatch(self, message: dict[str, Any]) -> None:
        match message.get("type"):  # any other message is ignored
            case "wake":
                await self.wake(message)
            case "relay":
                await self.relay(message)
