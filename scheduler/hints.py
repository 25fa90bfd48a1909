"""The channel of a host's scheduler: its messages mean "look at the commands again" and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from channels.consumer import AsyncConsumer  # type: ignore[import-untyped]


class Hints(AsyncConsumer):  # type: ignore[misc]
    """`heard` must not raise: a worker drops what is queued when a handler does."""

    heard: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, heard: Callable[[], None]) -> None:
        self.heard = heard

    async def wake(self, message: dict[str, Any]) -> None:
        self.heard()

    async def dispatch(self, message: dict[str, Any]) -> None:
        if message.get("type") == "wake":  # any other message is ignored
            await self.wake(message)
