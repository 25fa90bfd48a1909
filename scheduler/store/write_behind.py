"""A record is remembered first and written later, in batches: what a row is now (only the last value counts), what
happened (append-only, through the audit's hash chain), and samples.

A decision never waits for the database, and a database that is away for a while loses nothing but samples. Where it is
a server that may be away for hours, what is recorded meanwhile is kept here and comes later (journal.py). Everything
through the journal first, also while the database answers, would be one way less, and was measured: 35 µs an event more
(7 % of a core at 2,000 a second), and with SQLite a second fsync for each promise. So it was not taken.

After each write the group "live" is asked to look again, and so is whoever waits for a command that is done; these
messages are hints, and losing one costs nothing but time.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.db import DataError, Error, IntegrityError, OperationalError, models, transaction

from scheduler.parts import is_set_within
from scheduler.store import node_lease, node_snapshot
from scheduler.store.batches import Batch, parts_of, write_batch
from scheduler.store.database import Database, Here
from scheduler.store.journal import AsyncJournal, Journal, Numbered
from scheduler.store.node_snapshot import Fields, NodeSnapshot, Row, Rows
from web.models import AllocationEvent, Claim, Command, Container, UsageSample
from web.services.issuing import outcome_channel

log = logging.getLogger(__name__)
T = TypeVar("T")

PAUSE = 0.05  # seconds between two flushes, unless somebody waits for an answer
RETRY = 1.0
SLOW = 1.0  # seconds after which what has to be durable is kept here, whatever the database may still answer
BATCH = 5000  # rows of one kind in one transaction
SAMPLES_KEPT = 200_000  # while the database is away
# However often it is tried. Text that cannot be encoded, or a number that is too large, Python refuses by itself.
NEVER_TAKEN = (IntegrityError, DataError, ValueError, OverflowError)


@dataclass(slots=True)
class Unsent:
    """Fields of a row, and the number of the last change."""

    number: int = 0
    fields: Fields = field(default_factory=dict)


class WriteBehind:
    """Each record has a number. `_kept` and `_sent` say up to which the journal and the database have it."""

    def __init__(self, database: Database, here: Here, journal: AsyncJournal | None = None) -> None:
        """`journal`: keeps records while the database is away; None where that is a file of this host itself."""
        self.database = database
        self.journal = journal
        self.away = False  # as far as the last write tells
        # What has to be done before anything is sent, after a start without the database. Raises DatabaseError or
        # NameTaken.
        self.on_return: Callable[[], Awaitable[None]] | None = None
        self.lost = asyncio.Event()  # the node's name is another's; why, `lost_because` says
        self.lost_because: node_lease.NameTaken | None = None
        self._here = here
        self._layer = get_channel_layer()
        self._events: list[Numbered] = []  # that neither the journal nor the database has
        self._rows: dict[Row, Unsent] = {}  # that the database does not have
        self._samples: list[UsageSample] = []
        self._last: Rows = {}  # the last record of each row
        self._number = self._kept = self._sent = 0
        self._numbering = 0  # the key of the node whose events are numbered; 0 until the database has it
        self._events_written = 0
        self._dirty = asyncio.Event()
        self._awaited = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._keeping = asyncio.Lock()

    async def ask(self, query: Callable[..., T], *arguments: Any) -> T:
        """Runs a query in the database's thread."""
        return await self.database.ask(query, *arguments)

    async def write(self, query: Callable[..., T], *arguments: Any) -> T:
        """Runs one that writes, while this node's name is ours. Raises OperationalError if it is not any more."""
        return await self.write_by(_while_ours, self.require_name, query, *arguments)

    async def write_by(self, query: Callable[..., T], *arguments: Any) -> T:
        """The same of a query that calls `require_name` in its own transaction, before it writes anything."""
        try:
            return await self.ask(query, *arguments)
        except node_lease.NameTaken as error:
            self._lose(error)
            raise OperationalError(str(error)) from error

    def require_name(self) -> None:
        """For a query, within its transaction. Raises NameTaken."""
        if self._here.node:
            node_lease.require(self._here)

    def _lose(self, because: node_lease.NameTaken) -> None:
        self.lost_because = because
        self.lost.set()

    # ---- remembering ----

    def put(self, model: type[models.Model], pk: Any, fields: Mapping[str, Any]) -> None:
        row = (model, pk)
        # What is written once needs no comparing, and would be kept for ever.
        last = self._last.setdefault(row, {}) if model is not Command else {}
        new = {name: value for name, value in fields.items() if last.get(name, ...) != value}
        if new:
            last.update(new)
            self.with_the_next(row, **new)
            self._dirty.set()
        if fields.get("finished_at") or fields.get("removed_at"):
            self.forget_row(row)

    def with_the_next(self, row: Row, **fields: Any) -> None:
        """Is written with whatever is written next: nothing is to wait for it, and it makes nothing be written."""
        unsent = self._rows.setdefault(row, Unsent())
        unsent.number = self._next_number()
        unsent.fields.update(fields)

    def happened(self, event: AllocationEvent) -> None:
        self._events.append(Numbered(self._next_number(), event))
        self._dirty.set()

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def sampled(self, sample: UsageSample) -> None:
        self._samples.append(sample)
        self._dirty.set()

    def hurry(self) -> None:
        """Writes at once what was recorded so far, because somebody waits for it."""
        self._awaited.set()

    def forget_row(self, row: Row) -> None:
        """Of something that has ended: what was recorded of it need not be remembered any more."""
        self._last.pop(row, None)

    def _take_out(self, row: Row, names: Iterable[str]) -> None:
        if unsent := self._rows.get(row):
            for name in names:
                unsent.fields.pop(name, None)
            if not unsent.fields:
                del self._rows[row]

    @contextlib.asynccontextmanager
    async def nothing_written(self) -> AsyncIterator[None]:
        """While inside, nothing is written behind."""
        async with self._flushing:
            yield

    def may_be_written(self, row: Row, *names: str) -> None:
        """By a commit that had no answer: what is recorded next of these is written, whatever it is."""
        for name in names:
            self._last.get(row, {}).pop(name, None)

    async def promised(self, container: Container, quota: Mapping[str, int]) -> None:
        """The database has these claims (bytes by GPU), written by the caller inside `nothing_written`.

        A quota recorded before is not written after it, nor by the next scheduler, which finds it in the journal.
        That one has to know whose the claims are, if it starts without the database: so only now it may be started.
        """
        id_, pks = str(container.pk), self._here.gpus
        claims: Rows = {(Claim, (id_, pks[gpu])): {"quota": size} for gpu, size in quota.items()}
        for row, fields in claims.items():
            self._take_out(row, fields)
            self._last.setdefault(row, {}).update(fields)
        if self.journal:
            synced = self._sent < self._kept
            noted = await self.journal.note(Journal.promise, node_snapshot.of_container(container), claims, synced)
            if synced and not noted:  # the journal may hold an older quota until a write of this one is noted
                for row, fields in claims.items():
                    self.with_the_next(row, **fields)

    async def renamed(self, old: Row, new: Row, also: Rows) -> None:
        """The database has this row under another key, `also` these, written by the caller inside `nothing_written`."""
        if old in self._rows:
            self._rows[new] = self._rows.pop(old)
        if old in self._last:
            self._last[new] = self._last.pop(old)
        for row, fields in also.items():
            self._take_out(row, fields)
            self._last.setdefault(row, {}).update(fields)
        if self.journal:
            await self.journal.note(Journal.rename, old, new, also)

    # ---- writing ----

    async def run(self) -> None:
        """Writes what there is to write, outcomes at once, all else at most every `PAUSE` seconds, until cancelled."""
        while True:
            await self._dirty.wait()
            try:
                await self._flush_and_keep()
                await is_set_within(self._awaited, PAUSE)
            except Error as error:
                log.error("the database does not take what is to be written, trying again: %s", error)
                await asyncio.sleep(RETRY)
            except node_lease.NameTaken as error:
                self._lose(error)
                await asyncio.Event().wait()

    async def _flush_and_keep(self) -> None:
        """Writes everything, and while the database does not answer keeps what is recorded meanwhile."""
        flush = asyncio.create_task(self._flush())  # what it has taken out goes down with no one
        while not (await asyncio.wait([flush], timeout=SLOW))[0]:
            if self.journal:
                self.away = True
                await self._keep()
        flush.result()

    async def flush(self) -> None:
        """Writes everything remembered so far. Raises DatabaseError and the like, and keeps what was not written."""
        await asyncio.shield(asyncio.create_task(self._flush()))  # what it has taken out goes down with no one

    async def durable(self) -> None:
        """Returns once everything recorded so far is in the database, or, where that is away, kept on this host.

        Raises DatabaseError, and goes on trying.
        """
        if self.journal is None:
            await self.flush()
            return
        try:
            if self.away:
                raise OperationalError("the database is away")
            async with asyncio.timeout(SLOW):
                await self.flush()
        except (Error, TimeoutError):
            await self._keep()

    async def snapshot(self) -> NodeSnapshot:
        """What this host knows without the database, with all that was recorded. Raises OperationalError."""
        assert self.journal is not None
        with contextlib.suppress(OperationalError):  # without room it lacks what has happened since the start
            await self._keep()
        return NodeSnapshot(await self.journal.ask(Journal.known))

    async def _keep(self) -> None:
        """Everything recorded so far that the database may not have. Raises OperationalError."""
        await asyncio.shield(asyncio.create_task(self._keep_all()))

    async def _keep_all(self) -> None:
        assert self.journal is not None
        async with self._keeping:
            kept, number = self._kept, self._number
            events = [each for each in self._events if each.number > kept]
            rows = {row: dict(unsent.fields) for row, unsent in self._rows.items() if unsent.number > kept}
            if not events and not rows:
                return
            self._kept = number  # from here on it may be there
            try:
                await self.journal.ask(Journal.keep, events, rows)
            except Exception:
                self._kept = kept
                raise
            self._events = [each for each in self._events if each.number > number]

    @property
    def waiting(self) -> bool:
        """Whether anything recorded has not been written yet."""
        unwritten = self._sent < self._kept or self._rows or self._events or self._samples
        return self._flushing.locked() or bool(unwritten)

    def progress(self) -> dict[str, int]:
        """Events that were written so far, and records that are not written yet."""
        behind = {"rows": len(self._rows), "events": len(self._events), "samples": len(self._samples)}
        return {"events_written": self._events_written, **{f"{kind}_behind": count for kind, count in behind.items()}}

    async def _flush(self) -> None:
        async with self._flushing:
            self._dirty.clear()
            self._awaited.clear()
            try:
                await self._send()
            except Error:
                self.away = True
                del self._samples[:-SAMPLES_KEPT]
                if self.journal:
                    await self._keep()
                raise
            self.away = False

    async def _send_kept(self) -> None:
        """What happened while the database was away comes before what happened since."""
        if self.on_return is not None:
            await self.on_return()
            self.on_return = None
        sent = self._sent
        while self.journal and sent < self._kept:
            kept = self._kept
            events = await self.journal.ask(Journal.events, BATCH)
            if events:
                await self._write({}, events, [])
                await self.journal.ask(Journal.sent, events[-1].number, {}, events, True)
            sent = events[-1].number if events else kept

    async def _send(self) -> None:
        await self._send_kept()
        # Nothing older is in the journal. It can take from `_events` from here on: those are sent once all the same.
        number, kept = self._number, self._sent < self._kept
        rows = {row: dict(unsent.fields) for row, unsent in self._rows.items()}
        events, samples = list(self._events), self._samples[:BATCH]
        # Whoever starts after a kill is not to send an older value, nor a row without what happened to it.
        if self.journal and kept:
            with contextlib.suppress(OperationalError):  # without room it may be so
                await self.journal.ask(Journal.keep, events, rows)
        *early, last = [events[at : at + BATCH] for at in range(0, len(events) or 1, BATCH)]
        for part in early:  # no row says what the audit does not know yet
            await self._write({}, part, [])
        await self._write(rows, last, samples)
        self._events = [each for each in self._events if each.number > number]
        del self._samples[: len(samples)]
        if self._samples:
            self._dirty.set()
        settled = {
            row: {name: value for name, value in fields.items() if unsent.fields.get(name, ...) == value}
            for row, fields in rows.items()
            if (unsent := self._rows.get(row))
        }
        for row, fields in settled.items():
            self._take_out(row, fields)
        there, synced = settled if number < self._kept else rows, self._sent < self._kept
        if self.journal and not await self.journal.note(Journal.sent, number, there, events, synced) and synced:
            # It may hold older values, which the next scheduler would write over these: they are written and noted once
            # more.
            self._put_back(settled)
        else:
            self._sent = number
        await self._hint([pk for (model, pk), fields in rows.items() if model is Command and "done_at" in fields])

    def _put_back(self, rows: Rows) -> None:
        """To be written again, but for what was recorded anew meanwhile."""
        for row, fields in rows.items():
            anew = unsent.fields if (unsent := self._rows.get(row)) else {}
            if again := {name: value for name, value in fields.items() if name not in anew}:
                self.with_the_next(row, **again)
        self._dirty.set()

    async def _write(self, rows: Rows, events: list[Numbered], samples: list[UsageSample]) -> None:
        """Where the database will never take something of it, it is written in parts, without that: a row without a
        field of its own, or a command would stay open for a word in its message."""
        batches: list[Batch] = [(rows, events, samples)]
        while batches:
            batch = batches.pop(0)
            try:
                await self.ask(write_batch, *batch, self._here, self._numbering)
            except NEVER_TAKEN:
                parts = parts_of(*batch)
                if len(parts) == 1:
                    log.exception("the database does not take %s", batch)
                else:
                    batches[:0] = parts
            else:
                self._events_written += len(batch[1])

    async def _hint(self, done: Sequence[Any]) -> None:
        """Tells whoever waits for the outcome of one of these commands that it is there."""
        if self._layer is None:
            return
        try:
            for command in done:
                await self._layer.send(outcome_channel(command), {"type": "command.done"})
            await self._layer.group_send("live", {"type": "live.changed"})
        except Exception as error:  # whatever the layer is made of: a lost hint is no failure
            log.warning("the channel layer does not take a hint: %s", error)

    async def finish(self) -> None:
        """Writes all that is left."""
        while self.waiting:
            await self.flush()

    async def close(self) -> None:
        try:
            await self.finish()
        except (Error, node_lease.NameTaken) as error:
            log.error("not everything could be written: %s", error)
        if self.journal:
            await self.journal.close()
        await self.database.close()


def _while_ours(require_name: Callable[[], None], query: Callable[..., T], *arguments: Any) -> T:
    with transaction.atomic():
        require_name()
        return query(*arguments)
