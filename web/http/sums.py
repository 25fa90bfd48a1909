"""Lines of the log that strangers can cause: the first of a kind is written, the others of the next seconds counted."""

from __future__ import annotations

import logging
import threading
import time

SECONDS = 10.0
# Of whatever a request is like: addresses that are not there, hosts that are not ours, what is no HTTP, refusals.
CAUSED_FROM_OUTSIDE = ("django.request", "django.security", "uvicorn", "asyncio", "web.http", "appliance.running.doors")


class InSums(logging.Filter):
    """For a handler. Lines are of one kind if their text is the same before figures and names are put in."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._kinds: dict[tuple[object, ...], tuple[float, int]] = {}  # when one was written, and how many since then

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(CAUSED_FROM_OUTSIDE):
            return True
        text = str(record.msg)
        kind = record.name, text if record.args else text[:20], _place(record)  # nothing put in: it is in the text
        now = time.monotonic()
        with self._lock:
            written, more = self._kinds.get(kind, (0.0, 0))
            if written and now - written < SECONDS:
                self._kinds[kind] = (written, more + 1)
                return False
            self._kinds[kind] = (now, 0)
            if len(self._kinds) > 256:
                self._kinds = {name: seen for name, seen in self._kinds.items() if now - seen[0] < SECONDS}
        if more:
            record.msg, record.args = f"{record.getMessage()} (and {more} like it since the last such line)", ()
        return True


def _place(record: logging.LogRecord) -> tuple[str, int] | None:
    """Where the exception was raised: failures at two places are of two kinds."""
    at = record.exc_info[2] if isinstance(record.exc_info, tuple) else None
    while at and at.tb_next:
        at = at.tb_next
    return (at.tb_frame.f_code.co_filename, at.tb_lineno) if at else None
