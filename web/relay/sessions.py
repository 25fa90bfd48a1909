"""The sessions of this process: a thread in which what is relayed passes, so that neither requests nor decisions wait.

Whoever has one has a connected UNIX socket, with all that is known of those: bytes, their end, somebody who does not
read. How the other side ended is not reported; what passes says whether it is whole.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings

from web.relay.carrier import BEAT, Carrier, Lost, Side

T = TypeVar("T")

log = logging.getLogger(__name__)

BYTES_A_SECOND = 16 << 20  # of one session: a long log in seconds; more would take the scheduler's own time
ANSWERS_WITHIN = 5.0  # seconds that Redis has; what is asked to wait for a message may wait BEAT more


class Sessions:
    def __init__(self) -> None:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        self.loop = asyncio.new_event_loop()
        # A call that is made again could leave a message out, or send it twice.
        self._redis: Redis = Redis.from_url(
            settings.REDIS_URL, retry=Retry(NoBackoff(), 0), socket_keepalive=True,
            socket_connect_timeout=ANSWERS_WITHIN, socket_timeout=BEAT + ANSWERS_WITHIN,
        )  # fmt: skip
        self._database = ThreadPoolExecutor(1, thread_name_prefix="relay-database")
        self._tasks: set[asyncio.Task[None]] = set()
        threading.Thread(target=self.loop.run_forever, name="relay", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """In the thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def ask(self, query: Callable[..., T], *arguments: object) -> T:
        """The database, for the thread."""
        asked = database_sync_to_async(query, thread_sensitive=False, executor=self._database)
        answer: T = await asked(*arguments)
        return answer

    async def carry(
        self,
        session: UUID,
        key: bytes | memoryview,
        side: Side,
        connection: socket.socket,
        answered: asyncio.Event | None = None,
    ) -> None:
        """Between this socket and the other side, until either ends. In the thread. `answered`: see `Carrier`."""
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        pace = _Pace(BYTES_A_SECOND)
        try:
            await Carrier(self._redis, session, bytes(key), side, pace.keep, answered).carry(reader, writer)
        except Lost as why:
            log.info("a relayed session has ended: %s", why)
        except Exception:
            log.exception("a relayed session")
        finally:
            writer.close()

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins this in the thread, and keeps it until it ends. To be called from any."""
        self.loop.call_soon_threadsafe(self._keep, work)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Pace:
    def __init__(self, a_second: int) -> None:
        self._a_second, self._from = a_second, 0.0

    async def keep(self, size: int) -> None:
        """Waits until what was sent before has had its time."""
        now = time.monotonic()
        if self._from > now:
            await asyncio.sleep(self._from - now)
        self._from = max(self._from, now) + size / self._a_second


@cache
def sessions() -> Sessions:
    """Those of this process; its thread begins with the first."""
    return Sessions()
