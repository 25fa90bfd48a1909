"""The WebSocket of the dashboard, /ws/dashboard/: a snapshot, then numbered deltas (see web/live/feed.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json

from channels.generic.websocket import AsyncWebsocketConsumer  # type: ignore[import-untyped]

from web.errors import Problem
from web.live.feed import feed
from web.people import visitor

SIGN_IN = 4401  # close code: no session, or no longer (WebSockets have no status codes once accepted)


class DashboardConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Says {"type": "snapshot" | "delta" | "tick", "seq", "now", "data"}; hears {"type": "resync"}."""

    tasks: tuple[asyncio.Task[None], ...] = ()

    async def connect(self) -> None:
        await self.accept()
        if not self.scope["user"].is_authenticated:
            await self.close(SIGN_IN)
            return
        sender = asyncio.create_task(self._send_all())
        self.tasks = sender, asyncio.create_task(self._watch(sender))

    async def disconnect(self, code: int) -> None:
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Whoever missed a number asks for everything again. Anything else is not for us."""
        try:
            wanted = json.loads(text_data or "").get("type")
        except (ValueError, AttributeError):
            return
        if wanted == "resync" and feed().state is not None:
            await self.send(text_data=feed().whole())

    async def _watch(self, sender: asyncio.Task[None]) -> None:
        try:
            await visitor.watch(visitor.person, self.scope)
        except Problem:
            sender.cancel()  # first, so that nothing follows the close
            with contextlib.suppress(OSError):  # they have hung up
                await self.close(SIGN_IN)

    async def _send_all(self) -> None:
        async with feed().watching() as source:
            async for text in source.messages():
                await self.send(text_data=text)
