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
from concurrent.futures import Future, wait
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

ENTRIES = 256
LARGEST = 1 << 17  # bytes of a body that is kept: a hundred containers and more


def kept(key: Hashable, read: Callable[[], T]) -> T:
    """What `read` found when the database was as it is now. What comes back is everybody's: not to be changed."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.in_atomic_block or not may_be_asked(connection):
        return read()
    try:
        return _kept(str(connection.settings_dict["NAME"])).get(key, read)
    except sqlite3.Error:  # Django's own are others: the question failed, not the reading
        return read()


def may_be_asked(connection: BaseDatabaseWrapper) -> bool:
    """Whether this process can ask for the version: root opens no file that another user can write."""
    return connection.vendor == "sqlite" and not getattr(connection, "by_owner", None)


class Version:
    """Of one database: another number after each change. By a connection that never writes, so that every change is
    somebody else's, which is what SQLite tells of; the numbers of two of these have nothing to do with each other."""

    def __init__(self, database: str) -> None:
        name = f"{Path(database).absolute().as_uri()}?mode=rw"  # or it would make one that is not there
        self._connection = sqlite3.connect(name, timeout=0, uri=True, check_same_thread=False, isolation_level=None)

    def ask(self) -> int:
        """Raises sqlite3.Error."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)


class Kept:
    """Of one database. Used by all threads.

    Of each key one read is under way at a time. Whoever asks meanwhile cannot have what it finds, which may be older
    than their question, and waits for the next one together with all others who do. So however many ask and however
    often somebody writes, there are at most two reads between a question and its answer.
    """

    def __init__(self, database: str) -> None:
        self._database = Version(database)
        self._version: int | None = None
        self._values: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self._coming: dict[Hashable, Future[Any]] = {}  # reads that have not begun
        self._running: dict[Hashable, Future[Any]] = {}

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        with self._lock:
            self._look()
            if key in self._values:
                return cast(T, self._values[key])
            coming = self._coming.get(key)
            if coming is None:
                mine = self._coming[key] = Future()
                running = self._running.get(key)
        if coming is not None:
            return cast(T, coming.result())
        if running is not None:
            wait([running])
        with self._lock:
            self._running[key] = self._coming.pop(key)  # who comes from now on waits for the next
        try:
            value = self._read(key, read)
        except BaseException as error:
            self._end(key, mine)
            mine.set_exception(error)
            raise
        self._end(key, mine)
        mine.set_result(value)
        return value

    def _read(self, key: Hashable, read: Callable[[], T]) -> T:
        with self._lock:
            version = self._look()
            if key in self._values:  # the read before this one found it, and nobody has written since
                return cast(T, self._values[key])
        value = read()
        with self._lock:
            if self._look() == version and not (isinstance(value, bytes) and len(value) > LARGEST):
                self._values[key] = value
                if len(self._values) > ENTRIES:
                    self._values.popitem(last=False)
        return value

    def _end(self, key: Hashable, mine: Future[Any]) -> None:
        with self._lock:
            if self._running.get(key) is mine:
                del self._running[key]

    def _look(self) -> int:
        """The database's version. What was kept of another one is forgotten."""
        version = self._database.ask()
        if version != self._version:
            self._values.clear()
            self._version = version
        return version


class Recent(Generic[K, V]):
    """So many values, those that were asked for last. Used by all threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value
            if len(self._values) > self._most:
                self._values.popitem(last=False)

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The one that there is, or a new one."""
        found = self.get(key)
        if found is None:
            self.put(key, found := make())
        return found


@cache
def _kept(database: str) -> Kept:
    return Kept(database)
