"""What was read from the database, kept until the database changes: made once a change, not once a request.

Nobody is ever shown anything older than what was committed before they asked: each time the database itself is asked
whether anybody has written (SQLite's `PRAGMA data_version`, some 10 µs). PostgreSQL has no such question; there, and
inside a transaction, whose own writes nobody else knows of, everything is read anew.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from django.db import connection

T = TypeVar("T")

ENTRIES = 256
LARGEST = 1 << 17  # bytes of a body that is kept: a hundred containers and more


def kept(key: Hashable, read: Callable[[], T]) -> T:
    """What `read` found when the database was as it is now. What comes back is everybody's: not to be changed."""
    database = connection.settings_dict["NAME"]
    if connection.vendor != "sqlite" or connection.in_atomic_block or not Path(database).is_file():
        return read()
    return _kept(str(database)).get(key, read)


class Kept:
    """Of one database. Used by all threads."""

    def __init__(self, database: str) -> None:
        # It never writes, so that every change is another connection's, which is what the PRAGMA tells of.
        self._connection = sqlite3.connect(database, check_same_thread=False, isolation_level=None)
        self._version: int | None = None
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._reading: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        with self._lock:
            self._look()
            if key in self._values:
                return cast(T, self._values[key])
            alone = self._reading.setdefault(key, threading.Lock())
        with alone:  # one reads, and who asks for the same meanwhile waits for that
            with self._lock:
                version = self._look()
                if key in self._values:
                    return cast(T, self._values[key])
            try:
                value = read()
                with self._lock:
                    if self._look() == version and not (isinstance(value, bytes) and len(value) > LARGEST):
                        self._values[key] = value
                        if len(self._values) > ENTRIES:
                            self._values.popitem(last=False)
            finally:
                with self._lock:
                    self._reading.pop(key, None)
        return value

    def _look(self) -> int:
        """The database's version. What was kept of another one is forgotten."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._values.clear()
            self._version = version
        return int(version)


@cache
def _kept(database: str) -> Kept:
    return Kept(database)
