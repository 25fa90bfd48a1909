"""Answers are made once for each change of the database, not once for each request.

The database itself says whether anything was committed since: SQLite by `PRAGMA data_version` (10 µs), PostgreSQL by
its current snapshot, which names all transactions whose changes can be seen. So no reader gets anything older than what
was committed before they asked. What is kept is for all readers: callers look up rights for each request.
"""

import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from django.db import connection

T = TypeVar("T")

ENTRIES = 64  # answers that are kept, those that were asked for last


class Made(NamedTuple):
    version: Hashable
    began: float  # on the monotonic clock
    value: Any


class Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()  # held by the one thread that makes the answer
        self.made = Made(None, 0.0, None)
        self.failed: tuple[float, Exception] | None = None  # when the last read that failed began, and how


_entries: OrderedDict[Hashable, Entry] = OrderedDict()
_lock = threading.Lock()


def cached(key: Hashable, make: Callable[[], T], keep: Callable[[T], bool] = lambda value: True) -> T:
    """What `make` returned for the database as it is now, or returns. Do not change it: other readers get it too.

    `keep` says whether a value is small enough to be kept. Readers who wait for a read that fails fail with it.

    Readers who ask while another thread makes the answer wait for the next one, since the database may have changed
    after that thread began; one of them makes it for all.
    """
    asked, version = time.monotonic(), database_version()
    if version is None:
        return make()
    entry = _entry(key)
    made = entry.made
    if made.version != version:
        with entry.lock:
            made = entry.made
            if entry.failed and entry.failed[0] >= asked:
                raise entry.failed[1]
            if made.version != version and made.began < asked:
                # The version first: an answer may hold later changes than its version says, and never lacks any.
                began, version = time.monotonic(), database_version()
                try:
                    made = Made(version, began, make())
                except Exception as error:
                    entry.failed = began, error
                    raise
                if keep(made.value):
                    entry.made = made
    return cast(T, made.value)


def _entry(key: Hashable) -> Entry:
    with _lock:
        entry = _entries.setdefault(key, Entry())
        _entries.move_to_end(key)
        if len(_entries) > ENTRIES:
            _entries.popitem(last=False)
    return entry


def database_version() -> Hashable:
    """Differs after each change. None if it is not known: within a transaction, which sees its own changes alone, or
    where this process may not open the database's file."""
    if connection.in_atomic_block:
        return None
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_snapshot()")
            return name, cursor.fetchone()[0]
    if getattr(connection, "by_owner", None):
        return None
    try:
        with _lock:  # another thread's open statement would hold it at an older version
            return name, _watcher(name).execute("PRAGMA data_version").fetchone()
    except sqlite3.Error:
        return None


@cache
def _watcher(name: str) -> sqlite3.Connection:
    """A connection that never writes: SQLite tells a connection of the changes of all others."""
    uri = f"{Path(name).absolute().as_uri()}?mode=rw"  # or SQLite makes a file that is not there
    return sqlite3.connect(uri, timeout=0, uri=True, check_same_thread=False, isolation_level=None)
