"""How often the log says the same: the first of a kind is written, the others of the next seconds are counted."""

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

SECONDS = 10.0
# Of whatever a request is like: addresses that are not there, hosts that are not ours, what is no HTTP, refusals.
CAUSED_FROM_OUTSIDE = ("django.request", "django.security", "uvicorn", "asyncio", "web.http", "appliance.running.doors")
# Of one kind: each may be of another container. Of those with a traceback one is enough.
WARNINGS, OTHERS = 50, 500
KINDS = 256


class Seen(NamedTuple):
    since: float
    lines: int  # written and not
    most: int  # that are written
    text: str  # of the first one

    @property
    def left_out(self) -> int:
        return max(0, self.lines - self.most)


class InSums(logging.Filter):
    """For a handler. Lines are of one kind if their text is the same before figures and names are put in.

    `write` takes our own lines, about what was left out. Whatever a line is made of, whoever logs goes on: what cannot
    be put into words is passed on, and the handler says so. What is put in, and what the garbage collector ends
    meanwhile, may log in its turn: so the lock is one that a thread can take again, and no text is made under it.
    """

    def __init__(self, write: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._write = write
        self._lock = threading.RLock()
        self._kinds: dict[tuple[object, ...], Seen] = {}
        self._swept = time.monotonic()
        atexit.register(self._at_exit)

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            return record.name == __name__ or self._passes(record)
        except Exception:
            return True

    def _passes(self, record: logging.LogRecord) -> bool:
        outside = record.name.startswith(CAUSED_FROM_OUTSIDE)
        text = str(record.msg)
        # Where nothing is put in, it is in the text.
        kind = record.name, text if record.args or not outside else text[:20], _place(record)
        now = time.monotonic()
        with self._lock:
            seen = self._kinds.get(kind)
            if seen and now - seen.since < SECONDS:
                self._kinds[kind] = seen = seen._replace(lines=seen.lines + 1)
                return not seen.left_out
            ours = WARNINGS if record.levelno >= logging.WARNING else OTHERS
            most = 1 if outside or record.exc_info else ours
            self._kinds[kind] = Seen(now, 1, most, text[:200])
            more = seen.left_out if seen else 0
        said = record.getMessage()[:200]
        with self._lock:
            if mine := self._kinds.get(kind):
                self._kinds[kind] = mine._replace(text=said)
        if more:
            record.msg = f"{record.msg} (and {more} like it since the last such line)"
        if now - self._swept > SECONDS or len(self._kinds) > KINDS:
            self._sweep()
        return True

    def _at_exit(self) -> None:
        """Says the rest. Whoever took the stream may have closed it by now, and then nobody is left to tell of that."""
        before, logging.raiseExceptions = logging.raiseExceptions, False
        try:
            self._sweep(everything=True)
        finally:
            logging.raiseExceptions = before

    def _sweep(self, *, everything: bool = False) -> None:
        """Forgets the kinds that have become quiet, and says how many of each were left out."""
        self._swept = now = time.monotonic()
        with self._lock:
            kinds = self._kinds.copy().items()
            quiet = [kind for kind, seen in kinds if everything or now - seen.since > SECONDS]
            found = [seen for kind in quiet if (seen := self._kinds.pop(kind, None))]
        for seen in found:
            if seen.left_out:
                text, arguments = "%d more lines like this were left out: %s", (seen.left_out, seen.text)
                self._write(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, arguments, None))


def _place(record: logging.LogRecord) -> tuple[str, int] | None:
    """Where the exception was raised: failures at two places are of two kinds."""
    at = record.exc_info[2] if isinstance(record.exc_info, tuple) else None
    while at and at.tb_next:
        at = at.tb_next
    return (at.tb_frame.f_code.co_filename, at.tb_lineno) if at else None
