"""The WebSocket of the dashboard, /ws/dashboard/: a snapshot, then numbered deltas (see web/live/feed.py)."""

import asyncio
import contextlib
import json
import time

from channels.generic.websocket import AsyncWebsocketConsumer  # type: ignore[import-untyped]

from web.budgets import Place, Places
from web.errors import Problem
from web.live.feed import feed
from web.people import visitor

SIGN_IN = 4401  # close code: no session, or no longer (WebSockets have no status codes once accepted)
TOO_MANY = 4429  # this user has too many open
LONGEST = 1000  # characters of a message
WHOLE_AGAIN = 1.0  # seconds

_open = Places(32, "websockets_in_all")  # of a person: one for each open tab


class DashboardConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Says {"type": "snapshot" | "delta" | "tick", "seq", "now", "data"}; hears {"type": "resync"}."""

    channel_layer_alias = ""  # none: the feed hears hints, for all
    tasks: tuple[asyncio.Task[None], ...] = ()
    again: asyncio.Task[None] | None = None  # sends everything again
    place: Place | None = None
    whole_at = 0.0  # when everything was sent again

    async def connect(self) -> None:
        await self.accept()
        user = self.scope["user"]
        if not user.is_authenticated:
            await self.close(SIGN_IN)
            return
        self.place = _open.take(user.pk)
        if self.place is None:
            await self.close(TOO_MANY)
            return
        sender = asyncio.create_task(self._send_all())
        self.tasks = sender, asyncio.create_task(self._watch(sender))

    async def disconnect(self, code: int) -> None:
        if self.place:
            self.place.free()
        tasks = (*self.tasks, self.again) if self.again else self.tasks
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Whoever missed a number asks for everything again, has it once a second at most. Nothing else is heard."""
        try:
            wanted = json.loads((text_data or "")[:LONGEST]).get("type")
        except (ValueError, AttributeError, RecursionError):
            return
        if wanted == "resync" and self.place and (self.again is None or self.again.done()):
            # Not here: the end of the connection would wait behind all that was asked.
            self.again = asyncio.create_task(self._send_whole())

    async def _send_whole(self) -> None:
        await asyncio.sleep(max(0.0, self.whole_at + WHOLE_AGAIN - time.monotonic()))
        self.whole_at = time.monotonic()
        if feed().state is not None:
            with contextlib.suppress(OSError):  # they have hung up
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
