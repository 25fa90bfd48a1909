"""A container's output, as the engine wrote it to GPUSHARE_HOME/logs/<id>.log.

An end is announced before Docker's output is copied to its last line: a follower goes on until it is (copied.py).
However many follow logs, one task looks whether any has grown: it asks the file system about each log, and once a
second the database which containers have ended. Those who follow one log read from one descriptor, each at their place.
"""

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async  # type: ignore[import-untyped]
from django.conf import settings
from django.db import Error

from web.budgets import Place, Places
from web.console.copied import is_whole
from web.console.frames import PAYLOAD_LIMIT
from web.errors import Problem
from web.logs import ById
from web.models import Container
from web.relay.reaching import here

LOOK = 0.2  # seconds between two looks at the sizes of logs
ASK = 1.0  # seconds between two questions which containers have ended
LEFT = 30.0  # seconds after an end in which nothing more was copied: then a copy that is not whole will not come
UNREADABLE = "output_unreadable"
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of this process, and for now: says nothing about the log
TAIL_BYTES = 16 << 20  # searched for the beginning of the last lines: one line of 95 MiB held everybody up
_CHUNK = PAYLOAD_LIMIT - 8  # bytes; with its place a frame (relayed.py)

Pieces = AsyncIterator[tuple[int, bytes]]  # where in the output, and what

log = logging.getLogger(__name__)

_places = Places("log_followers", "log_followers_in_all")


def path_of(container: UUID) -> Path:
    return Path(settings.GPUSHARE_HOME) / "logs" / f"{container}.log"


def place_to_follow(user: int) -> Place:
    """Raises Problem if this user, or all of them, follow enough logs."""
    return _places.require(user, "logs are followed")


def is_here(container: UUID) -> bool:
    """Whether this host has any of its output. Raises Problem if that cannot be read."""
    found = Log(container)
    try:
        found.look()
    except OSError as error:
        log.error("the output of container %s cannot be read: %s", ById(str(container)), error)
        raise Problem(
            UNREADABLE,
            f"The output of this container cannot be read on its host: {error.strerror}. "
            "There, `gpushare doctor` names the files and what to do.",
            500,
        ) from None
    else:
        return found.file is not None
    finally:
        found.close()


async def written(container: UUID, tail: int | None = None, start: int | None = None) -> Pieces:
    """What is there: all of it, or the last `tail` lines, or what comes from `start` on. Raises OSError."""
    log = Log(container)
    try:
        log.look()
        position = start if start is not None else await log.beginning(tail)
        async for chunk in log.read(position):
            yield position, chunk
            position += len(chunk)
    finally:
        log.close()


async def followed(container: UUID, allowed: asyncio.Future[Any], tail: int | None = None,
                   start: int | None = None) -> Pieces:  # fmt: skip
    """What is there and what comes, until the container has ended and its output is whole, or is done with here, or
    until `allowed` is done. Raises OSError: what cannot be read has no end."""
    async with _logs().followed(container) as log:
        allowed.add_done_callback(lambda _: log.tell())
        while log.file is None and not log.ended and not log.failed and not allowed.done():
            await log.news.wait()
        position = start if start is not None else await log.beginning(tail)
        while not allowed.done():
            news, ended = log.news, log.ended
            async for chunk in log.read(position):
                yield position, chunk
                position += len(chunk)
                if allowed.done():
                    return
            if log.failed:
                raise log.failed
            if ended:
                return
            await news.wait()


class Log:
    """One file. `size` and `ended` are as of the last look; `news` is set, and replaced, when they change."""

    def __init__(self, container: UUID) -> None:
        self._path = path_of(container)
        self.file: int | None = None
        self.size, self.ended, self.followers = 0, False, 0
        self.failed: OSError | None = None
        self.news = asyncio.Event()
        self._grown = self._end_seen = 0.0  # by the monotonic clock

    def look(self) -> bool:
        """Whether there is more than at the last look."""
        if self.file is None:
            with contextlib.suppress(FileNotFoundError):
                self.file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        before, self.size = self.size, os.fstat(self.file).st_size if self.file is not None else 0
        if self.size != before:
            self._grown = time.monotonic()
        return self.size != before

    def is_over(self) -> bool:
        """Whether nothing more will come, of one whose container has ended. Raises OSError."""
        now = time.monotonic()
        self._end_seen = self._end_seen or now
        return is_whole(self._path) or now - max(self._end_seen, self._grown) >= LEFT

    def tell(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    async def read(self, position: int) -> AsyncIterator[bytes]:
        """The bytes from `position` to what is the end when it begins."""
        end = self.size
        while self.file is not None and position < end:
            chunk = await asyncio.to_thread(os.pread, self.file, min(_CHUNK, end - position), position)
            if not chunk:
                return
            position += len(chunk)
            yield chunk

    async def beginning(self, lines: int | None) -> int:
        """Where the last `lines` lines begin; None: all of them."""
        if self.file is None or lines is None:
            return 0
        return await asyncio.to_thread(_beginning, self.file, self.size, lines, TAIL_BYTES)

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None


class Logs:
    """The logs that are followed in one event loop: each is looked at once for all who follow it."""

    def __init__(self) -> None:
        self._of: dict[UUID, Log] = {}
        self._task: asyncio.Task[None] | None = None
        # A thread of its own, which outlives the request of whoever follows first.
        thread = ThreadPoolExecutor(1, thread_name_prefix="logs")
        self._live = database_sync_to_async(_live, thread_sensitive=False, executor=thread)

    @contextlib.asynccontextmanager
    async def followed(self, container: UUID) -> AsyncIterator[Log]:
        log = self._of.setdefault(container, Log(container))
        log.followers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            log.look()
            yield log
        finally:
            log.followers -= 1
            if not log.followers:
                del self._of[container]
                log.close()

    async def _look(self) -> None:
        asked = 0.0
        while self._of:
            ended: set[UUID] = set()
            if time.monotonic() - asked >= ASK:
                asked = time.monotonic()
                followed = set(self._of)
                with contextlib.suppress(Error):  # away for now: the logs go on
                    ended = followed - await self._live(followed)
            for container, log in self._of.items():
                more = over = False
                try:
                    over = container in ended and log.is_over()  # asked before: what came before the end is seen now
                    more = log.look()
                except OSError as error:
                    log.failed = error if error.errno not in SHORT else None
                log.ended = log.ended or over
                if more or log.ended or log.failed:
                    log.tell()
            await asyncio.sleep(LOOK)


def _live(containers: set[UUID]) -> set[UUID]:
    """Those of them that live, and not on another host (a Swarm may have taken one there)."""
    return set(Container.objects.live().filter(here(), pk__in=containers).values_list("pk", flat=True))


def _beginning(file: int, size: int, lines: int, at_most: int) -> int:
    """Where the last `lines` lines begin, but no further back than `at_most` bytes: there a line is cut."""
    if not lines:
        return size
    first = max(0, size - at_most)
    end = size
    while end > first:
        start = max(first, end - _CHUNK)
        block = os.pread(file, end - start, start)
        at = len(block)
        if end == size and block.endswith(b"\n"):
            at -= 1  # that which ends the last line begins no other
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            lines -= 1
            if not lines:
                return start + at + 1
        end = start
    return first


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Logs] = WeakKeyDictionary()


def _logs() -> Logs:
    return _of_loops.setdefault(asyncio.get_running_loop(), Logs())
