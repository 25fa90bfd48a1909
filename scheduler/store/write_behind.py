"""What is told is remembered first and written later, in batches: what a row is now (only the last value counts), what
happened (append-only, through the audit's hash chain), and samples.

A decision never waits for the database, and a database that is away for a while loses nothing but samples. Where it is
a server that may be away for hours, what is told meanwhile is kept here and comes later (async_journal.py, journal.py).
After each write the group "live" is told to look again, and so is whoever waits for a command that is done; these
messages are hints, and losing one costs nothing but time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.db import DataError, Error, IntegrityError, OperationalError, models, transaction
from django.db.models.functions import Now

from scheduler.store import event_log, node_lease
from scheduler.store.async_journal import AsyncJournal, Numbered, Row, Rows
from scheduler.store.database import Database, Here
from scheduler.store.journal import Fields
from scheduler.store.split_batch import Batch, split_batch
from web import audit
from web.inserting import insert
from web.models import AllocationEvent, Claim, Command, Container, Node, UsageSample
from web.models.states import LOST
from web.services.issuing import outcome_channel

log = logging.getLogger(__name__)
T = TypeVar("T")

PAUSE = 0.05  # seconds between two flushes, unless somebody waits for an answer
RETRY = 1.0
SLOW = 1.0  # seconds after which what has to be durable is kept here, whatever the database may still answer
BATCH = 5000  # rows of one kind in one transaction
SAMPLES_KEPT = 200_000  # while the database is away
ONCE = (AllocationEvent.Kind.STARTED, AllocationEvent.Kind.ENDED)  # to each container, on each of its GPUs
OF_AN_END = ("finished_at", "exit_code", "reason")  # what it tells of itself
# However often it is tried. Text that cannot be encoded, or a number that is too large, Python refuses by itself.
NEVER_TAKEN = (IntegrityError, DataError, ValueError, OverflowError)


class WriteBehind:
    def __init__(self, database: Database, here: Here, journal: AsyncJournal | None = None) -> None:
        """`journal`: what is told while the database is away; None where that is a file of this host itself."""
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
        self._rows: Rows = {}
        self._writing: Rows = {}  # by the flush that is under way
        self._written: Rows = {}
        self._learnt: dict[str, Fields | None] = {}  # what the flush under way leads to in `journal.snapshot`
        self._unkept: set[Row] = set()  # what is told of them is neither in the database nor kept
        self._number = 0
        self._numbering = 0  # the key of the node whose events are numbered; 0 until the database has it
        self._events: list[Numbered] = []
        self._sending: list[Numbered] = []
        self._samples: list[UsageSample] = []
        self._events_written = 0
        self._dirty = asyncio.Event()
        self._awaited = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._moving = asyncio.Lock()  # while events go from here to the journal: none may overtake them

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
        written = self._written.setdefault(row, {}) if model is not Command else {}
        waiting, writing = self._rows.get(row, {}), self._writing.get(row, {})

        def last(name: str) -> Any:
            return waiting.get(name, writing.get(name, written.get(name, ...)))

        new = {name: value for name, value in fields.items() if last(name) != value}
        if new:
            self._remember(row, new)
            if self.journal:
                self.journal.snapshot.put(model, pk, new)
            self._dirty.set()

    def with_the_next(self, row: Row, **fields: Any) -> None:
        """Is written with whatever is written next: nothing is to wait for it, and it makes nothing be written."""
        self._remember(row, fields)

    def _remember(self, row: Row, fields: Mapping[str, Any]) -> None:
        self._rows.setdefault(row, {}).update(fields)
        if self.journal:
            self._unkept.add(row)

    def happened(self, event: AllocationEvent) -> None:
        self._number += 1
        self._events.append(Numbered(self._number, event))
        self._dirty.set()

    def sampled(self, sample: UsageSample) -> None:
        self._samples.append(sample)
        self._dirty.set()

    def hurry(self) -> None:
        """Writes at once what was told so far, because somebody waits for it."""
        self._awaited.set()

    def forget_row(self, row: Row) -> None:
        """Of something that has ended: what was written of it need not be remembered any more."""
        self._written.pop(row, None)

    @contextlib.asynccontextmanager
    async def nothing_written(self) -> AsyncIterator[None]:
        """While inside, nothing is written behind."""
        async with self._flushing:
            yield

    def may_be_written(self, row: Row, *names: str) -> None:
        """By a commit that had no answer: what is told next of these is written, whatever it is."""
        for name in names:
            self._written.get(row, {}).pop(name, None)

    def was_written(self, row: Row, **fields: Any) -> None:
        """By somebody else, inside `nothing_written`: what was told before is not to be written after it.

        Nor by the next scheduler, which finds it where it was kept: it goes from there when this has been written, too.
        """
        for name in fields:
            self._rows.get(row, {}).pop(name, None)
        if self.journal:
            self._remember(row, fields)
            self._dirty.set()
        self._written.setdefault(row, {}).update(fields)

    # ---- writing ----

    async def run(self) -> None:
        """Writes what there is to write, outcomes at once, all else at most every `PAUSE` seconds, until cancelled."""
        while True:
            await self._dirty.wait()
            try:
                await self._flush_and_keep()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE):
                        await self._awaited.wait()
            except Error as error:
                log.error("the database does not take what is to be written, trying again: %s", error)
                await asyncio.sleep(RETRY)
            except node_lease.NameTaken as error:
                self._lose(error)
                await asyncio.Event().wait()

    async def _flush_and_keep(self) -> None:
        """Writes everything, and while the database does not answer keeps what is told meanwhile."""
        flush = asyncio.create_task(self._flush())  # what it has taken out goes down with no one
        while not (await asyncio.wait([flush], timeout=SLOW))[0]:
            if self.journal:
                self.away = True
                await self._keep()
        flush.result()

    async def flush(self) -> None:
        """Writes everything remembered so far. Raises DatabaseError and the like, journal what was not written."""
        await asyncio.shield(asyncio.create_task(self._flush()))  # what it has taken out goes down with no one

    async def durable(self) -> None:
        """Returns once everything told so far is in the database, or, where that is away, kept on this host.

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

    async def _keep(self) -> None:
        """Everything told so far that the database may not have. Raises OperationalError."""
        assert self.journal is not None
        async with self._moving:
            events, unkept = self._events, self._unkept
            rows = {row: {**self._writing.get(row, {}), **self._rows.get(row, {})} for row in unkept}
            self._events, self._unkept = [], set()
            learnt, self._learnt = {**self._learnt, **self.journal.snapshot.take_changed()}, {}
            try:
                await self.journal.keep([*self._sending, *events], rows)
            except BaseException:
                # Those that the database did not take meanwhile are back already, and are older.
                self._events = sorted([*events, *self._events], key=lambda each: each.number)
                self._unkept |= unkept
                self.journal.snapshot.put_back(learnt)
                raise
            await self.journal.save_snapshot(learnt)

    @property
    def waiting(self) -> bool:
        """Whether anything told has not been written yet."""
        kept = self.journal is not None and self.journal.holds_events
        return self._flushing.locked() or kept or bool(self._rows or self._events or self._samples)

    def progress(self) -> dict[str, int]:
        """Events that were written so far, and what is told and not written yet."""
        behind = {"rows": len(self._rows), "events": len(self._events), "samples": len(self._samples)}
        return {"events_written": self._events_written, **{f"{kind}_behind": count for kind, count in behind.items()}}

    async def _flush(self) -> None:
        async with self._flushing:
            self._dirty.clear()
            self._awaited.clear()
            try:
                await self._send(await self._take())
            except Error:
                self.away = True
                if self.journal:
                    await self._keep()
                raise
            self.away = False
            if self.journal:
                learnt, self._learnt = self._learnt, {}
                await self.journal.save_snapshot(learnt)

    async def _send_kept(self) -> None:
        """What happened while the database was away comes before what happened since."""
        if self.on_return is not None:
            await self.on_return()
            self.on_return = None
        while self.journal and self.journal.holds_events:
            if events := await self.journal.events(BATCH):
                await self._write([({}, events, [])])
                await self.journal.sent(events[-1].number)

    async def _take(self) -> Batch:
        """All that is to be written, once nothing older is kept."""
        while True:
            await self._send_kept()
            async with self._moving:
                if self.journal is None or not self.journal.holds_events:
                    self._writing, self._rows = self._rows, {}
                    self._sending, self._events = self._events, []
                    if self.journal:
                        self._learnt |= self.journal.snapshot.take_changed()
                    samples, self._samples = self._samples[:BATCH], self._samples[BATCH:]
                    return self._writing, self._sending, samples

    async def _send(self, batch: Batch) -> None:
        rows, events, samples = batch
        *early, last = [events[at : at + BATCH] for at in range(0, len(events) or 1, BATCH)]
        try:
            if self.journal and self.journal.holds_rows:  # whoever starts after a kill is not to send an older value
                with contextlib.suppress(OperationalError):  # without room it may be so
                    await self.journal.keep([], rows)
            # No row says what the audit does not know yet.
            await self._write([*(({}, part, []) for part in early), (rows, last, samples)])
        finally:
            self._writing, self._sending = {}, []
        if self._samples:
            self._dirty.set()
        if self.journal:
            self._unkept.difference_update(rows.keys() - self._rows.keys())
            await self.journal.rows_sent({row: rows[row].keys() - self._rows.get(row, {}).keys() for row in rows})
        await self._hint([pk for (model, pk), fields in rows.items() if model is Command and "done_at" in fields])

    async def _write(self, batches: list[Batch]) -> None:
        """In order. One with something in it that the database will never take is written in parts, without that: a
        row without a field of its own, or a command would stay open for a word in its message."""
        while batches:
            batch = batches[0]
            try:
                await self.ask(_write, *batch, self._here, self._numbering)
            except NEVER_TAKEN:
                parts = split_batch(*batch)
                if len(parts) == 1:
                    log.exception("the database does not take %s", parts[0])
                    parts = []
                batches[:1] = parts
            except Exception:  # whatever it is: nothing of it is lost
                for rest in reversed(batches):
                    self._put_back(*rest)
                raise
            else:
                written, events_written, _ = batches.pop(0)
                self._events_written += len(events_written)
                self._note_written(written)

    def _put_back(self, rows: Rows, events: list[Numbered], samples: list[UsageSample]) -> None:
        for row, fields in rows.items():
            self._rows[row] = {**fields, **self._rows.get(row, {})}
            if self.journal:
                self._unkept.add(row)
        kept = self.journal.last if self.journal else 0
        self._events[:0] = [each for each in events if each.number > kept]
        self._samples = (samples + self._samples)[-SAMPLES_KEPT:]
        self._dirty.set()

    def _note_written(self, rows: Rows) -> None:
        for row, fields in rows.items():
            if fields.get("finished_at") or fields.get("removed_at"):
                self._written.pop(row, None)
            elif row in self._written:
                self._written[row].update(fields)

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


def _write(rows: Rows, events: list[Numbered], samples: list[UsageSample], here: Here, numbering: int) -> None:
    """While this node is ours (node_lease.py), which nobody can take before all of this is written.

    `numbering`: the key of the node that numbers its events; 0: they are new without looking. Raises NameTaken.
    """
    with transaction.atomic():
        if here.node:
            node_lease.require(here)
        for (model, pk), fields in rows.items():
            if model is Node and "seen_at" in fields:
                fields = {**fields, "seen_at": Now()}
            key = {"container_id": pk[0], "gpu_id": pk[1]} if model is Claim else {"pk": pk}
            found = model._default_manager.filter(**key)
            if model is Container:  # what was lost with its node, while that was away, stays so; its events come
                found = found.exclude(reason=LOST)
                if numbering and fields.get("finished_at") and _had_ended(found, fields["finished_at"]):
                    fields = {name: value for name, value in fields.items() if name not in OF_AN_END}
            found.update(**fields)
        new = [each.event for each in (_not_told(numbering, events) if numbering and events else events)]
        new = _not_repeated(new)  # a death between two batches leaves an event whose row is not written yet
        insert(UsageSample, samples)
        audit.append(new)  # last: until this is committed, nobody else can append
    event_log.tell(new)


def _not_told(node: int, events: list[Numbered]) -> list[Numbered]:
    """Those that the database has not had before; from now on it has had all of them."""
    here, last = Node.objects.filter(pk=node), events[-1].number
    if here.filter(told__lt=events[0].number).update(told=last):
        return events
    told = here.values_list("told", flat=True).get()
    here.filter(told__lt=last).update(told=last)
    return [each for each in events if each.number > told]


# A scheduler that starts without the database knows of its containers what this host knew (node_snapshot.py). That is
# kept after the database has heard it, and not synced: so who was killed in between, or had a power cut, finds a start
# or an end anew that the database has. The first one stays.


def _not_repeated(events: list[AllocationEvent]) -> list[AllocationEvent]:
    ids = {event.container_id for event in events if event.kind in ONCE}
    said = AllocationEvent.objects.filter(kind__in=ONCE, container__in=ids).exclude(detail=LOST)
    known = set(said.order_by().values_list("kind", "container", "gpu")) if ids else set()
    return [event for event in events if (event.kind, UUID(str(event.container_id)), event.gpu_id) not in known]


def _had_ended(found: models.QuerySet[models.Model], at: datetime) -> bool:
    return found.filter(finished_at__isnull=False).exclude(finished_at=at).exists()
