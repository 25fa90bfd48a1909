"""The live feed: one reader of the database per process, however many browsers watch.

The scheduler's hint (group "live") or the passing of a second makes the feed read a new snapshot. What changed becomes
a numbered delta, made into JSON once and kept in a short ring. What needs somebody takes longer to find out than all
else and changes seldom: it is looked at less often, and comes in a delta behind. Every consumer sends from that ring at
its own pace: one that fell out of it, or says that it missed a number, gets the whole snapshot again. Nothing is queued
for a slow browser, and no message is ever needed for correctness.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from channels.layers import get_channel_layer  # type: ignore[import-untyped]

from web.live import snapshot

log = logging.getLogger(__name__)

GROUP = "live"
REST = 0.01  # seconds from one read to the next at the least; the processor has 6 ms of one with 200 containers
PART = 0.5  # of the time at the most goes into reading, however many containers there are: others want answers too
REREAD = 1.0  # and at the most, hint or no hint
ATTEND = 1.0  # between two looks at what needs somebody
HEARTBEAT = 2.0  # a sign of life at least this often, so that a browser can tell quiet from dead
RING = 256  # deltas kept for browsers that are a little behind


class Feed:
    """Reads while anybody is subscribed. All of it runs in one event loop."""

    def __init__(self) -> None:
        self.number = 0
        self.state: snapshot.Snapshot | None = None
        self.ring: deque[tuple[int, str]] = deque(maxlen=RING)
        self.beat = 0  # counts signs of life
        self.watchers = 0
        self.news = asyncio.Condition()
        self.hint = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.attended = float("-inf")  # when what needs somebody was looked at
        self.unattended = False  # it could not be found out
        # A thread of its own: nobody's slow query stands before the screens.
        thread = ThreadPoolExecutor(1, thread_name_prefix="live")
        self.read_snapshot, self.read_attention = (
            database_sync_to_async(read, thread_sensitive=False, executor=thread)
            for read in (snapshot.read, snapshot.needs_somebody)
        )

    @contextlib.asynccontextmanager
    async def watching(self) -> "AsyncIterator[Feed]":
        self.watchers += 1
        if self.watchers == 1:
            self.tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._listen())]
        try:
            yield self
        finally:
            self.watchers -= 1
            if self.watchers == 0:
                for task in self.tasks:
                    task.cancel()
                self.state = None  # nobody keeps it fresh: whoever comes next waits for a new one

    async def messages(self) -> AsyncIterator[str]:
        """Snapshot first, then every delta in order, with signs of life in between. Skips to a snapshot if behind."""
        seen, beat = -1, -1
        while True:
            async with self.news:
                while self.state is None or (seen, beat) == (self.number, self.beat):
                    await self.news.wait()
                missed = [text for number, text in self.ring if number > seen]
                behind = seen < 0 or len(missed) != self.number - seen
                texts = [self.whole()] if behind else missed or [self._tick()]
                seen, beat = self.number, self.beat
            for text in texts:
                yield text

    def whole(self) -> str:
        return json.dumps({"type": "snapshot", "seq": self.number, "now": time.time(), "data": self.state})

    def _tick(self) -> str:
        return json.dumps({"type": "tick", "seq": self.number, "now": time.time()})

    async def _read(self) -> None:
        """Reads for ever. A database that is away is news once: then screens see the age of what they show grow."""
        beaten = time.monotonic()
        failing = False
        while True:
            began = time.monotonic()
            self.hint.clear()
            try:
                if await self._look(beat=began - beaten >= HEARTBEAT):
                    beaten = began
                failing = False
            except Exception:
                if not failing:
                    log.exception("the live feed cannot read the database")
                failing = True
                self.attended = float("-inf")
                if self.state is not None:
                    await self._publish(snapshot.without_database(self.state), beat=False)
            due = began + max(REST, (time.monotonic() - began) / PART)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REREAD):
                    await self.hint.wait()
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _look(self, *, beat: bool) -> bool:
        """Whether there was anything to say."""
        new = await self.read_snapshot()
        said = False
        if self.state is not None:
            new["attention"] = self.state["attention"]
            said = await self._publish(new, beat=beat)
        if self.state is None or time.monotonic() - self.attended >= ATTEND:
            self.attended = time.monotonic()
            said |= await self._publish({**new, "attention": await self._attention()}, beat=False)
        return said

    async def _attention(self) -> snapshot.Records:
        """What needs somebody; what was last known of it if that cannot be found out: nothing else waits for it."""
        try:
            found: snapshot.Records = await self.read_attention()
        except Exception:
            if not self.unattended:
                log.exception("the live feed cannot find out what needs somebody")
            self.unattended = True
            found = self.state["attention"] if self.state else {}
        else:
            self.unattended = False
        return found

    async def _publish(self, new: snapshot.Snapshot, *, beat: bool) -> bool:
        async with self.news:
            if self.state is None:
                # A number never seen before: a browser that knew an older state must not take a delta for its next.
                self.number += 1
                self.ring.clear()
            elif changes := snapshot.delta(self.state, new):
                self.number += 1
                message = {"type": "delta", "seq": self.number, "now": time.time(), "data": changes}
                self.ring.append((self.number, json.dumps(message)))
            elif beat:
                self.beat += 1
            else:
                return False
            self.state = new
            self.news.notify_all()
            return True

    async def _listen(self) -> None:
        """Turns the scheduler's hints into reads. A channel layer that is away costs only their promptness."""
        while True:
            try:
                layer = get_channel_layer()
                channel = await layer.new_channel()
                await layer.group_add(GROUP, channel)
                try:
                    while True:
                        await layer.receive(channel)
                        self.hint.set()
                finally:  # or whoever opens and closes the page makes the group longer each time
                    await layer.group_discard(GROUP, channel)
            except Exception:
                log.warning("no hints from the channel layer; reading each second instead", exc_info=True)
                await asyncio.sleep(5 * REREAD)


_feeds: WeakKeyDictionary[asyncio.AbstractEventLoop, Feed] = WeakKeyDictionary()


def feed() -> Feed:
    """This process's feed (one for each event loop, which in a server is one)."""
    return _feeds.setdefault(asyncio.get_running_loop(), Feed())
