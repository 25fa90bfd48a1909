"""Copies what a Docker container prints into its log file: at once, bounded, and exactly once across restarts.

Beside the log lies a small file, `<log>.position` (web/console/copied.py): how many bytes of the log are certain, the
time stamp of the last message in them, and how many messages bore that stamp. A copier that starts again cuts the log
back to the certain bytes and asks Docker for what came since, so that a scheduler killed between two writes neither
loses nor repeats.
Docker keeps messages in the order they were written. Their stamps can run backwards: the two output streams are stamped
apart, all pieces of a long line bear the stamp of its first, and the host's clock can be set back. So the copier looks
for the last known message and never compares stamps for older and newer. Docker drops its oldest messages: where it has
the last known one no more, all that it has is new.
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
import docker.errors
import requests.exceptions
import urllib3.exceptions

from scheduler import clock
from scheduler.engines.docker.client import HEAD_START, release, wake
from scheduler.engines.kept import make_folder_of, mark, open_log
from scheduler.pace import Pace
from web.console.copied import Position, path_of_position, read

log = logging.getLogger(__name__)

DOCKERS_BUFFER = 16 << 10  # bytes of a line that Docker puts into one message
ASK_EARLIER = 10**9  # ns before the last known message: Docker is asked for seconds, a float, which rounds
BYTES_A_SECOND = 4 << 20  # of a container: a hundred pages of text
LINES_A_SECOND = 20_000  # of a container: each costs the engine and the copier work, however short it is
LINES_A_SECOND_IN_ALL = 10_000  # copied in the process that decides: two fifths of a core at most
LOOK = 0.02  # seconds between two looks whether a copier is done
GRAIN = 0.02  # seconds that are waited at least: a thread that wakes for each line keeps the others from theirs


class LogCopier:
    """One container's output, copied by a thread of its own until it ends or `close` is called."""

    def __init__(
        self,
        api: docker.APIClient,
        engine_id: str,
        path: Path,
        limit: int,
        in_all: "InAll",
        *,
        tty: bool,
        begin: float = 0.0,
    ) -> None:
        """`begin`: seconds since the epoch; what it has printed before is of an earlier run."""
        self.done = threading.Event()
        self.complete = False  # nothing is left to copy; what is done and not complete is to be started again
        self.refused = False  # Docker does not give what is left
        self._api, self._engine_id, self._limit, self._in_all = api, engine_id, limit, in_all
        self.path, self.begin, self.tty = path, begin, tty
        self._stream: docker.types.CancellableStream[Any] | None = None
        self._go = threading.Event()
        self._hurry = threading.Event()  # nothing more will come, or nobody wants it
        self._closing = False
        with contextlib.suppress(OSError):  # the thread meets the same and says so
            os.close(_open_position(path))  # before the container's end can be announced: its output is still to come
        self._thread = threading.Thread(target=self._run, name=f"logs {engine_id[:12]}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the host lets no thread be started now; the container runs all the same
            log.warning("The output of container %s is not copied for now: %s", engine_id[:12], error)
            self.done.set()

    def close(self) -> None:
        self._closing = True
        self._go.set()
        self._hurry.set()
        if self._stream is not None:
            wake(self._stream)
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def hurry(self) -> None:
        """The container has ended: nobody's budget is spent by what is left of its output."""
        self._go.set()
        self._hurry.set()

    async def until_done(self, within: float) -> None:
        """Returns when it is done, or after so many seconds. In no thread: those are for everybody's calls."""
        self.hurry()
        for _ in range(round(within / LOOK)):
            if self.done.is_set():
                return
            await asyncio.sleep(LOOK)

    def _run(self) -> None:
        self._go.wait(HEAD_START)
        try:
            # What Docker has, which has an end, shows for sure whether the last known message is still there.
            # At a container's end Docker may end a followed stream before the last messages; asked again it has them.
            for copy in (self._catch_up, self._follow, self._copy_rest):
                with LogFile(self.path, self._limit) as file:
                    if not file.complete:
                        copy(file)
                    self.complete = file.complete
        except docker.errors.NotFound:  # the container was removed, its output with it: nothing more will come
            with contextlib.suppress(OSError), LogFile(self.path, self._limit) as file:
                file.finish()
                self.complete = True
        except (docker.errors.APIError, requests.exceptions.RequestException, OSError, ValueError) as error:
            # Started again by the next reconciliation if the container is still there.
            self.refused = isinstance(error, docker.errors.APIError)
            if not self._closing:
                log.warning("The output of container %s is not copied for now: %s", self._engine_id[:12], error)
        finally:
            self.done.set()

    def _catch_up(self, file: "LogFile") -> None:
        if file.seeking:
            self._copy_present(file)

    def _follow(self, file: "LogFile") -> None:
        if not self._closing:
            self._copy(file, follow=True)

    def _copy_rest(self, file: "LogFile") -> None:
        if not self._closing and not self._api.inspect_container(self._engine_id)["State"]["Running"]:
            self._copy_present(file)
            if not self._closing and not file.complete:
                file.finish()

    def _copy_present(self, file: "LogFile") -> None:
        if not self._closing:
            self._copy(file, follow=False)
        if not self._closing and file.seeking:  # Docker has dropped the last known message
            file.forget()
            self._copy(file, follow=False)

    def _copy(self, file: "LogFile", *, follow: bool) -> None:
        known = (file.stamp - ASK_EARLIER) / 1e9 if file.seeking else 0.0  # the file skips what it has
        since = max(self.begin, known)
        self._stream = self._api.logs(self._engine_id, stream=True, follow=follow, timestamps=True, since=since or None)
        try:
            if self._closing:  # `close` came before there was a stream to close
                return
            # Not through the SDK's stream: it takes a broken connection for the end, and the log would be whole.
            messages = self._messages_of_terminal() if self.tty else self._stream._stream  # type: ignore[attr-defined]
            for message in paced(messages, self._in_all, self._hurry.wait):
                if self._closing or not file.add(*_parted(message)):
                    return
        except urllib3.exceptions.ProtocolError as error:
            raise ConnectionError(f"Docker's answer broke off: {error}") from error
        finally:
            release(self._stream)

    def _messages_of_terminal(self) -> Iterator[bytes]:
        # The SDK would read this stream byte by byte; reading whole chunks is a thousand times cheaper.
        response = self._stream._response  # type: ignore[union-attr]
        return messages_of_terminal(self._api._stream_raw_result(response, None, False))  # type: ignore[attr-defined]


class LogFile:
    """The log and its position. `add` is given messages in Docker's order and writes those that it has not."""

    def __init__(self, path: Path, limit: int) -> None:
        self._limit = limit
        self._position = _open_position(path)
        self._log = open_log(path, os.O_RDWR)
        self._size, self.stamp, self._seen, self.complete = read(self._position)
        if os.fstat(self._log).st_size < self._size:
            # A power cut kept the position and lost the log's tail, or somebody emptied the log: copy it again, all of
            # it. Saved first: a kill after the first message would leave the old position with a new log.
            self._size = self.stamp = self._seen = 0
            self.complete = False
            self._save()
        os.ftruncate(self._log, self._size)
        self.seeking = self._seen > 0  # the last known message is still to come; those before it are known
        self._in_a_row = 0  # messages with its stamp that have come one after the other
        self._skipped = 0  # bytes

    def __enter__(self) -> "LogFile":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._log)
        os.close(self._position)

    def add(self, stamp: int, text: bytes) -> bool:
        """Appends what Docker said at that time, unless the log has it already.

        False if it takes no more: the log is full, or (then still `seeking`) the last known message will not come.
        """
        if not self.seeking:
            return self._append(stamp, text)
        self._in_a_row = self._in_a_row + 1 if stamp == self.stamp else 0
        if self._in_a_row >= self._seen and self._ends_with(text):
            self.seeking = False
        self._skipped += len(text)
        return not self.seeking or self._skipped <= self._size  # more than the log has cannot be known

    def forget(self) -> None:
        """The last known message is nowhere any more: all that comes is new."""
        self.stamp = self._seen = 0
        self.seeking = False
        self._save()

    def _ends_with(self, text: bytes) -> bool:
        at = self._size - len(text)
        return at >= 0 and os.pread(self._log, len(text), at) == text

    def _append(self, stamp: int, text: bytes) -> bool:
        if self._size + len(text) > self._limit:
            self._write(mark(self._limit))
            self.finish()
            return False
        self._write(text)
        self._seen = self._seen + 1 if stamp == self.stamp else 1
        self.stamp = stamp
        self._save()
        return True

    def finish(self) -> None:
        self.complete = True
        self._save()

    def _write(self, text: bytes) -> None:
        written = 0
        while written < len(text):
            written += os.pwrite(self._log, text[written:], self._size + written)
        self._size += written

    def _save(self) -> None:
        os.pwrite(self._position, Position(self._size, self.stamp, self._seen, self.complete).pack(), 0)


def _open_position(log: Path) -> int:
    make_folder_of(log)
    return open_log(path_of_position(log), os.O_RDWR)


class InAll:
    """The lines of all containers together. For any thread."""

    def __init__(self, a_second: float, now: float) -> None:
        self._pace, self._lock = Pace(a_second, now), threading.Lock()

    def take(self, now: float) -> float:
        """One line; see Pace."""
        with self._lock:
            return self._pace.take(now)


def paced(
    messages: Iterable[bytes],
    in_all: InAll,
    wait: Callable[[float], bool],
    clock: Callable[[], float] = clock.monotonic,
) -> Iterator[bytes]:
    """No faster than its container's budget, and all of theirs; what it prints meanwhile waits with Docker, which keeps
    the newest.

    `wait` waits for so many seconds, and returns true if there is no need to any more.
    """
    size, count = Pace(BYTES_A_SECOND, clock()), Pace(LINES_A_SECOND, clock())
    hurry = False
    for message in messages:
        while not hurry and (pause := size.take(clock(), len(message))):
            hurry = wait(max(pause, GRAIN))
        for lines in (count, in_all):
            while not hurry and (pause := lines.take(clock())):
                hurry = wait(max(pause, GRAIN))
        yield message


def messages_of_terminal(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Docker's messages, each with its stamp, out of a stream that has no frames around them, as a terminal's has none.

    A message ends with its line. That of a longer line ends after 16 KiB, Docker's own buffer.
    """
    rest = b""
    for chunk in chunks:
        rest += chunk
        while (end := _end(rest)) > 0:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _end(text: bytes) -> int:
    """Where the first message ends; 0 if that has not come yet."""
    whole = text.find(b" ") + 1 + DOCKERS_BUFFER
    line = text.find(b"\n", 0, whole) + 1
    return line or (whole if len(text) > whole else 0)


def _parted(message: bytes) -> tuple[int, bytes]:
    stamp, _, text = message.partition(b" ")
    return parse_stamp(stamp.decode()), text


def parse_stamp(text: str) -> int:
    """Nanoseconds since the epoch of Docker's "2026-11-20T21:33:34.292872726Z"."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    return int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp()) * 10**9 + int(fraction.ljust(9, "0")[:9])
