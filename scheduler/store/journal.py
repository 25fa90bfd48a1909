"""What this host keeps by itself: what the database has not heard yet, and what a scheduler has to know without it.

One SQLite file that root alone may read, with three tables:

    event    what happened and has not been sent, by the number that this host gave it
    row      fields of rows that are to be written, the last value of each
    known    what a start without the database needs: this host, its cards, its living containers (node_snapshot.py)

How each event comes to the database once, in order, whoever is killed when: every event has a number of its node's,
and only higher ones follow. The transaction that writes events also notes the last number with the node (`Node.told`);
what is sent again is left out by that. So an event leaves this file only after the database has it, and whether the
answer to a commit was lost does not matter. Rows need no number: writing the same value twice changes nothing.

A number is the count of the scheduler's starts and, below, of the events since. So the next start needs no look at what
the last one had sent: all its numbers are higher.

The file is durable (`synchronous=FULL`) where somebody waits for that, while the database is away; at other times a
killed scheduler loses nothing by writing without, and a power cut ends the containers as well (benchmarks/journal.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

log = logging.getLogger(__name__)

NAME = "outbox.sqlite3"
RUN = 1 << 40  # events that one run of a scheduler may tell of
OFTEN = ("accepted", "freed")  # what is left out first where there is no room; the next such event says what is held
LAST_RESORT = 1.25  # of the budget: then nothing is taken any more
TABLES = """
CREATE TABLE IF NOT EXISTS event (number INTEGER PRIMARY KEY, kind TEXT, fields TEXT) STRICT;
CREATE TABLE IF NOT EXISTS row (key TEXT PRIMARY KEY, fields TEXT) STRICT;
CREATE TABLE IF NOT EXISTS known (key TEXT PRIMARY KEY, fields TEXT) STRICT;
CREATE TABLE IF NOT EXISTS note (name TEXT PRIMARY KEY, value TEXT) STRICT;
"""

Fields = dict[str, Any]
Numbered = tuple[int, Fields]


class JournalFull(Exception):
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
        self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._file.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + TABLES)
        self._file.execute("INSERT OR IGNORE INTO note VALUES ('id', ?)", (str(uuid4()),))
        self.id = self._note("id") or ""

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
        return any(self._file.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() for name in ("event", "row", "known"))

    # ---- numbers ----

    def next_run(self, above: int = 0) -> int:
        """The number before the first of a new run: higher than all that were given here, and than `above`."""
        run = max(int(self._note("run") or 0), above // RUN) + 1
        self._set_note("run", str(run))
        return run * RUN

    # ---- what the database has not heard yet ----

    def keep(self, events: Sequence[Numbered], rows: Mapping[str, Fields]) -> None:
        """Returns once it is on the disk. Raises JournalFull, with nothing kept of it."""
        kept = [(number, str(fields["kind"]), _text(fields)) for number, fields in events]
        over = self.size() / self._budget if self._budget else 0.0
        if over > LAST_RESORT:
            raise JournalFull(
                f"{self._path} has no room for more of what happens ({self._budget} bytes, GPUSHARE_OUTBOX), and the "
                "database is away: nothing that has to be recorded first is begun."
            )
        if over > 1:
            few = [event for event in kept if event[1] not in OFTEN]
            self.left_out += len(kept) - len(few)
            kept = few
        with _transaction(self._file):
            self._file.executemany("INSERT OR IGNORE INTO event VALUES (?, ?, ?)", kept)
            for key, fields in rows.items():
                self._merge("row", key, fields)

    def events(self, most: int) -> list[Numbered]:
        """The oldest that are kept."""
        found = self._file.execute("SELECT number, fields FROM event ORDER BY number LIMIT ?", (most,))
        return [(number, json.loads(fields)) for number, fields in found]

    def sent(self, last: int) -> None:
        """The database has all events up to this number."""
        self._file.execute("DELETE FROM event WHERE number <= ?", (last,))

    def rows(self) -> dict[str, Fields]:
        return {key: json.loads(fields) for key, fields in self._file.execute("SELECT key, fields FROM row")}

    def rows_sent(self, rows: Mapping[str, Iterable[str]]) -> bool:
        """The database has these fields. Whether there are others."""
        with _transaction(self._file):
            for key, names in rows.items():
                found = self._file.execute("SELECT fields FROM row WHERE key = ?", (key,)).fetchone()
                gone = set(names)
                left = (
                    {name: value for name, value in json.loads(found[0]).items() if name not in gone} if found else {}
                )
                if left:
                    self._file.execute("UPDATE row SET fields = ? WHERE key = ?", (_text(left), key))
                else:
                    self._file.execute("DELETE FROM row WHERE key = ?", (key,))
        return self._file.execute("SELECT 1 FROM row LIMIT 1").fetchone() is not None

    def size(self) -> int:
        """Of what is kept; room that was freed in the file is used again."""
        pages, free, size = (self._file.execute(f"PRAGMA {name}").fetchone()[0] for name in (
            "page_count", "freelist_count", "page_size",
        ))  # fmt: skip
        return int((pages - free) * size)

    # ---- what a start needs ----

    def know(self, known: Mapping[str, Fields | None]) -> None:
        """Whole entries; None forgets one. Not synced: see above."""
        self._file.execute("PRAGMA synchronous=NORMAL")
        try:
            with _transaction(self._file):
                for key, fields in known.items():
                    if fields is None:
                        self._file.execute("DELETE FROM known WHERE key = ?", (key,))
                    else:
                        self._file.execute("INSERT OR REPLACE INTO known VALUES (?, ?)", (key, _text(fields)))
        finally:
            self._file.execute("PRAGMA synchronous=FULL")

    def known(self) -> dict[str, Fields]:
        return {key: json.loads(fields) for key, fields in self._file.execute("SELECT key, fields FROM known")}

    # ---- helpers ----

    def _merge(self, table: str, key: str, fields: Fields) -> None:
        before = self._file.execute(f"SELECT fields FROM {table} WHERE key = ?", (key,)).fetchone()
        merged = {**json.loads(before[0]), **fields} if before else fields
        self._file.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", (key, _text(merged)))

    def _note(self, name: str) -> str | None:
        found = self._file.execute("SELECT value FROM note WHERE name = ?", (name,)).fetchone()
        return found[0] if found else None

    def _set_note(self, name: str, value: str) -> None:
        self._file.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, value))


class _transaction:
    def __init__(self, file: sqlite3.Connection) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.execute("COMMIT" if kind is None else "ROLLBACK")


def _text(fields: Mapping[str, Any]) -> str:
    """Times and ids as texts: a model's fields read them (`to_python`)."""
    return json.dumps(fields, default=str, separators=(",", ":"))
