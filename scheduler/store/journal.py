"""What this host keeps by itself: what the database has not heard yet, and what a scheduler has to know without it.

One SQLite file that root alone may read, with two tables:

    event    what happened and has not been sent, by the number that this host gave it
    row      rows of the database: `unsent`, fields that are to be written, the last value of each; and `known`, fields
             that a start without the database needs (node_snapshot.py), as the database has them, or null

How each event comes to the database once, in order, whoever is killed when: every event has a number of its node's,
and only higher ones follow. The transaction that writes events also notes the last number in `Node.last_event`;
what is sent again is left out by that. So an event leaves this file only after the database has it, and whether the
answer to a commit was lost does not matter. Rows need no number: writing the same value twice changes nothing.

A number is the count of the scheduler's starts and, below, of the changes since. So the next start needs no look at
what the last one had sent: all its numbers are higher.

The file is durable (`synchronous=FULL`) where somebody waits for that, while the database is away; at other times a
killed scheduler loses nothing by writing without, and a power cut ends the containers as well.
"""

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from django.db import OperationalError, models

from scheduler import threads
from scheduler.store.node_snapshot import Fields, Row, Rows, as_row, needed
from web.models import AllocationEvent, Claim, Command, Container, Gpu, Node, ReservedGpu, Usage, UsageHour, Volume

log = logging.getLogger(__name__)
T = TypeVar("T")

NAME = "outbox.sqlite3"
RUN = 1 << 40  # events and changes of rows that one run of a scheduler may tell of
OFTEN = ("accepted", "freed")  # what is left out first where there is no room; the next such event says what is held
BYTES = 256 << 20  # some 800,000 events: a lab's day without the database
LAST_RESORT = 1.25  # of the budget: then nothing is taken any more
MODELS: dict[str, type[models.Model]] = {
    each.__name__: each for each in (Claim, Command, Container, Gpu, Node, ReservedGpu, Usage, UsageHour, Volume)
}
LEFT_OUT = ("id", "seal_id")  # of an event: what the database gives it
TABLES = """
CREATE TABLE IF NOT EXISTS event (number INTEGER PRIMARY KEY, kind TEXT, fields TEXT) STRICT;
CREATE TABLE IF NOT EXISTS row (key TEXT PRIMARY KEY, unsent TEXT, known TEXT) STRICT;
CREATE TABLE IF NOT EXISTS note (name TEXT PRIMARY KEY, value TEXT) STRICT;
"""


class Numbered(NamedTuple):
    """An event, and its number among those of this node."""

    number: int
    event: AllocationEvent


class JournalFull(OperationalError):
    """There is no room for what happened; the message says what that means."""


class Journal:
    """Every call blocks: in a thread of its own. Sizes are bytes. Raises sqlite3.Error where the disk is full."""

    def __init__(self, path: Path, budget: int) -> None:
        self._path = path
        self._budget = budget
        self.left_out = 0  # events for which there was no room
        try:
            self._open()
        except sqlite3.OperationalError:
            raise  # the disk, not the file
        except sqlite3.DatabaseError as error:
            self._file.close()
            log.error("%s is damaged (%s), and is kept as %s", path, error, self._move("damaged"))
            self._open()

    def _open(self) -> None:
        os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._file = sqlite3.connect(self._path, isolation_level="IMMEDIATE", check_same_thread=False)
        self._file.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + TABLES)
        with self._file:
            self._file.execute("INSERT OR IGNORE INTO note VALUES ('id', ?)", (str(uuid4()),))
        self.id: str = self._one("SELECT value FROM note WHERE name = 'id'") or ""

    def close(self) -> None:
        self._file.close()

    def set_aside(self) -> Path:
        """Begins anew: what is kept here is of another database. Returns where it lies now."""
        self.close()
        aside = self._move(self.id)
        self._open()
        return aside

    def _move(self, word: str) -> Path:
        aside = self._path.with_suffix(f".{word}.sqlite3")
        for more in ("", "-wal", "-shm"):  # closing has taken the others away, if it could
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{more}").rename(f"{aside}{more}")
        return aside

    def holds_anything(self) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM event) OR EXISTS (SELECT 1 FROM row)"))

    def next_run(self, above: int = 0) -> int:
        """The number before the first of a new run: higher than all that were given here, and than `above`."""
        run = max(int(self._one("SELECT value FROM note WHERE name = 'run'") or 0), above // RUN) + 1
        with self._file:
            self._file.execute("INSERT OR REPLACE INTO note VALUES ('run', ?)", (str(run),))
        return run * RUN

    def size(self) -> int:
        """Of what is kept; room that was freed in the file is used again."""
        pages, free, size = (self._one(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size"))
        return int((pages - free) * size)

    # ---- what the database has not heard yet ----

    def keep(self, events: Sequence[Numbered], rows: Rows) -> None:
        """Returns once it is on the disk. Raises JournalFull, with nothing kept of it."""
        over = self.size() / self._budget if self._budget else 0.0
        if over > LAST_RESORT:
            raise JournalFull(
                f"{self._path} has no room for more of what happens ({self._budget} bytes), and the "
                "database is away: nothing that has to be recorded first is begun."
            )
        kept = [each for each in events if over <= 1 or each.event.kind not in OFTEN]
        if len(kept) < len(events):
            self.left_out += len(events) - len(kept)
            log.warning("%s has no room: %d allocations and frees are left out so far", self._path, self.left_out)
        with self._file:
            self._file.executemany(
                "INSERT OR IGNORE INTO event VALUES (?, ?, ?)",
                [(number, str(event.kind), _text(_fields(event))) for number, event in kept],
            )
            for row, fields in rows.items():
                self._set("unsent", row, {**self._get("unsent", row), **fields})
            self._learn(_used(events))

    def events(self, most: int) -> list[Numbered]:
        """The oldest that are kept."""
        found = self._file.execute("SELECT number, fields FROM event ORDER BY number LIMIT ?", (most,))
        return [Numbered(number, as_row(AllocationEvent, json.loads(fields))) for number, fields in found]

    def rows(self) -> Rows:
        """What an earlier scheduler had still to write."""
        found = self._file.execute("SELECT key, unsent FROM row WHERE unsent IS NOT NULL")
        return {(row := _row(key)): _values(row[0], json.loads(fields)) for key, fields in found}

    def sent(self, last: int, rows: Rows, events: Sequence[Numbered], synced: bool) -> None:
        """The database has all events up to the `last` number, these among them, and these values of rows.

        `synced`: something of it was kept here, and whoever starts after a power cut is not to send it again.
        """
        with self._writing(synced):
            if synced:
                self._file.execute("DELETE FROM event WHERE number <= ?", (last,))
                for row, fields in rows.items():
                    self._take_out(row, fields)
            self._learn(rows)
            self._learn(_used(events))

    # ---- what a start needs ----

    def known(self) -> Rows:
        """What this host knows of the database, with what is still to be written. Values are those of JSON."""
        found = self._file.execute(
            """SELECT key, known, unsent FROM row WHERE known IS NOT NULL OR key LIKE '["Usage",%'"""
        )
        return {_row(key): json.loads(known or "{}") | json.loads(unsent or "{}") for key, known, unsent in found}

    def learn(self, rows: Mapping[Row, Fields | None], instead_of: Sequence[type[models.Model]] = ()) -> None:
        """The database has these rows, or not any more (None); and of the models `instead_of` no others."""
        with self._writing(synced=False):
            for model in instead_of:
                self._file.execute("UPDATE row SET known = NULL WHERE key LIKE ?", (f'["{model.__name__}"%',))
            for row, fields in rows.items():
                self._set("known", row, fields)

    def promise(self, container: Rows, claims: Rows, synced: bool) -> None:
        """A container has these claims. It is not known anew if it began before and is not known: then it has ended."""
        ((row, fields),) = container.items()
        with self._writing(synced):
            known = self._get("known", row)
            if not known and not fields["started_at"]:
                self._set("known", row, known := fields)
            for claim, its in claims.items():
                self._take_out(claim, its)
                if known:
                    self._set("known", claim, self._get("known", claim) | its)

    def rename(self, old: Row, new: Row, also: Rows) -> None:
        """The database has a row under another key, and these values of others."""
        with self._writing(synced=False):
            for row, fields in also.items():
                self._take_out(row, fields)
            self._learn(also)
            self._file.execute("UPDATE OR REPLACE row SET key = ? WHERE key = ?", (_key(new), _key(old)))

    def _learn(self, rows: Rows) -> None:
        """Of rows that are known: what the database has now."""
        for row, fields in rows.items():
            model, pk = row
            if model is Container and fields.get("finished_at"):
                self._file.execute(
                    "UPDATE row SET known = NULL WHERE key = ? OR key LIKE ?", (_key(row), f'["Claim",["{pk}",%')
                )
            elif (new := needed(model, fields)) and ((known := self._get("known", row)) or model is Usage):
                self._set("known", row, known | new)

    # ---- helpers ----

    @contextlib.contextmanager
    def _writing(self, synced: bool) -> Iterator[None]:
        """A transaction, which leaves no row of which nothing is to be kept."""
        self._file.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")
        try:
            with self._file:
                yield
                self._file.execute("DELETE FROM row WHERE unsent IS NULL AND known IS NULL")
        finally:
            self._file.execute("PRAGMA synchronous=FULL")

    def _take_out(self, row: Row, sent: Fields) -> None:
        if unsent := self._get("unsent", row):
            self._set("unsent", row, {name: value for name, value in unsent.items() if name not in sent})

    def _get(self, column: str, row: Row) -> Fields:
        found = self._one(f"SELECT {column} FROM row WHERE key = ?", _key(row))
        return json.loads(found) if found else {}

    def _set(self, column: str, row: Row, fields: Fields | None) -> None:
        self._file.execute(
            f"INSERT INTO row (key, {column}) VALUES (?, ?) "
            f"ON CONFLICT (key) DO UPDATE SET {column} = excluded.{column}",
            (_key(row), _text(fields) if fields else None),
        )

    def _one(self, query: str, *arguments: str) -> Any:
        found = self._file.execute(query, arguments).fetchone()
        return found[0] if found else None


class AsyncJournal:
    """The journal for the event loop: each call is made in a thread of its own, in the order of the calls."""

    def __init__(self, path: Path, budget: int) -> None:
        """`budget`: bytes that the journal may take. Raises OperationalError."""
        self._thread = threads.pool(1, "journal")
        self.missed = False  # something that was to be learnt; nobody needs it while the database answers
        try:
            self._journal = self._thread.submit(Journal, path, budget).result()
        except sqlite3.Error as error:
            raise OperationalError(f"{path}: {error}") from error

    @property
    def id(self) -> str:
        """Of this file: another one knows nothing of what this one has sent."""
        return self._journal.id

    async def ask(self, call: Callable[..., T], *arguments: Any) -> T:
        """Calls a method of `Journal`. Raises OperationalError, as for any other database."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, call, self._journal, *arguments)
        except sqlite3.Error as error:
            raise OperationalError(f"{NAME} in GPUSHARE_HOME: {error}") from error

    async def note(self, call: Callable[..., None], *arguments: Any) -> bool:
        """The same of what the database has already. False if it failed: that is learnt again later."""
        try:
            await self.ask(call, *arguments)
        except OperationalError as error:
            log.warning("what this host has to know without the database is not kept now: %s", error)
            self.missed = True
            return False
        return True

    async def close(self) -> None:
        await self.ask(Journal.close)
        self._thread.shutdown()


def _text(fields: Mapping[str, Any]) -> str:
    """Times and ids as texts: a model's fields read them (`to_python`)."""
    return json.dumps(fields, default=str, separators=(",", ":"))


def _key(row: Row) -> str:
    return json.dumps([row[0].__name__, row[1]], default=str, separators=(",", ":"))


def _row(key: str) -> Row:
    name, pk = json.loads(key)
    return MODELS[name], tuple(pk) if isinstance(pk, list) else pk


def _values(model: type[models.Model], fields: Fields) -> Fields:
    known = {each.name: each for each in model._meta.concrete_fields}
    return {name: known[name].to_python(value) for name, value in fields.items() if name in known}


def _fields(event: AllocationEvent) -> Fields:
    names = (each.attname for each in AllocationEvent._meta.concrete_fields)
    return {name: getattr(event, name) for name in names if name not in LEFT_OUT}


def _used(events: Sequence[Numbered]) -> Rows:
    """What containers used by the last of these events that says so."""
    return {
        (Claim, (str(event.container_id), event.gpu_id)): {"reported": event.used_after}
        for _, event in events
        if event.used_after is not None
    }
