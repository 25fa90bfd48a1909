"""The journal and the snapshot of the node for the event loop: each call runs in a thread of their own."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from django.db import OperationalError, models

from scheduler import threads
from scheduler.store.journal import NAME, Fields, Journal, JournalFull
from scheduler.store.node_snapshot import NodeSnapshot
from web.models import AllocationEvent, Claim, Command, Container, Gpu, Node

T = TypeVar("T")
Row = tuple[type[models.Model], Any]  # and its key: a claim's are those of its container and its GPU
Rows = dict[Row, dict[str, Any]]
MODELS = {model.__name__: model for model in (Claim, Command, Container, Gpu, Node)}
LEFT_OUT = ("id", "seal_id")  # of an event: what the database gives it


class Numbered(NamedTuple):
    """An event, and its number among those of this node (journal.py)."""

    number: int
    event: AllocationEvent


class AsyncJournal:
    def __init__(self, path: Path, budget: int) -> None:
        """`budget`: bytes that the journal may take."""
        self._thread = threads.pool(1, "journal")
        try:
            self._journal = self._thread.submit(Journal, path, budget).result()
        except sqlite3.Error as error:
            raise OperationalError(f"{path}: {error}") from error
        self._writing = asyncio.Lock()
        self.snapshot = NodeSnapshot()
        self.holds_events = True  # until it was looked
        self.holds_rows = True
        self.last = 0  # the number of the last event that is kept, or was, and of none that is not

    @property
    def id(self) -> str:
        """Of this file: another one knows nothing of what this one has sent."""
        return self._journal.id

    @property
    def left_out(self) -> int:
        return self._journal.left_out

    async def close(self) -> None:
        await self.save_snapshot(self.snapshot.take_changed())
        await self._ask(self._journal.close)
        self._thread.shutdown()

    async def next_run(self, above: int = 0) -> int:
        """The number before those of this run."""
        self.last = await self._ask(self._journal.next_run, above)
        return self.last

    async def holds_anything(self) -> bool:
        return await self._ask(self._journal.holds_anything)

    async def set_aside(self) -> Path:
        """What is kept is of another database. Returns where it lies from now on."""
        self.snapshot = NodeSnapshot()
        return await self._ask(self._journal.set_aside)

    async def keep(self, events: Sequence[Numbered], rows: Mapping[Row, Mapping[str, Any]]) -> None:
        """Returns once it is on the disk. Raises OperationalError if it cannot be."""
        plain = {_key(row): dict(fields) for row, fields in rows.items()}
        async with self._writing:
            new = [each for each in events if each.number > self.last]
            if not new and not plain:
                return
            self.holds_events, self.holds_rows = self.holds_events or bool(new), self.holds_rows or bool(plain)
            try:
                await self._ask(self._journal.keep, [(each.number, _fields(each.event)) for each in new], plain)
            except JournalFull as error:
                raise OperationalError(str(error)) from error
            self.last = max([self.last, *(each.number for each in new)])

    async def events(self, most: int) -> list[Numbered]:
        """The oldest that are kept."""
        self.holds_events = False
        found = await self._ask(self._journal.events, most)
        self.holds_events = self.holds_events or bool(found)
        return [Numbered(number, _event(fields)) for number, fields in found]

    async def sent(self, last: int) -> None:
        await self._ask(self._journal.sent, last)

    async def rows(self) -> Rows:
        """What an earlier scheduler had still to write."""
        found = await self._ask(self._journal.rows)
        return {(row := _row(key)): _values(row[0], fields) for key, fields in found.items()}

    async def rows_sent(self, rows: Mapping[Row, Iterable[str]]) -> None:
        """The database has these fields."""
        if self.holds_rows:
            self.holds_rows = await self._ask(self._journal.rows_sent, {_key(row): list(rows[row]) for row in rows})

    async def recall(self) -> None:
        """From now on `snapshot` is what an earlier scheduler knew, with what it had still to write."""
        rows = await self.rows()
        entries = await self._ask(self._journal.known)
        self.snapshot.recall(entries, [(model, key, fields) for (model, key), fields in rows.items()])

    async def promised(self, container: Container, quota: Mapping[str, int]) -> None:
        """It is to have these claims (bytes by GPU), and may be started once this has returned."""
        self.snapshot.promised(container, quota)
        await self.save_snapshot(self.snapshot.take_changed(container.pk))

    async def save_snapshot(self, changed: Mapping[str, Fields | None]) -> None:
        """Raises nothing: it is needed only if the database is away as well."""
        if changed:
            try:
                await self._ask(self._journal.know, changed)
            except OperationalError:
                self.snapshot.put_back(changed)

    async def _ask(self, call: Callable[..., T], *arguments: Any) -> T:
        """Raises OperationalError, as for any other database."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)
        except sqlite3.Error as error:
            raise OperationalError(f"{NAME} in GPUSHARE_HOME: {error}") from error


def _key(row: Row) -> str:
    model, pk = row
    return json.dumps([model.__name__, pk], default=str)


def _row(key: str) -> Row:
    name, pk = json.loads(key)
    return MODELS[name], tuple(pk) if isinstance(pk, list) else pk


def _values(model: type[models.Model], fields: Fields) -> Fields:
    known = {each.name: each for each in model._meta.concrete_fields}
    return {name: known[name].to_python(value) for name, value in fields.items() if name in known}


def _fields(event: AllocationEvent) -> Fields:
    return {
        each.attname: getattr(event, each.attname)
        for each in AllocationEvent._meta.concrete_fields
        if each.attname not in LEFT_OUT
    }


def _event(fields: Fields) -> AllocationEvent:
    known = {each.attname: each for each in AllocationEvent._meta.concrete_fields}
    return AllocationEvent(**{name: known[name].to_python(value) for name, value in fields.items() if name in known})
