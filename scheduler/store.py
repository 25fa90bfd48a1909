"""The only door from the scheduler to the database.

Going out, everything is remembered first and written later, in batches: what a row is now (only the last value
counts), what happened (append-only, through the audit's hash chain), and samples. A decision never waits for the
database, and a database that is away for a while loses nothing but samples. Coming in, desired state is read.

All queries run in one thread of their own. After each write the group "live" is told to look again, and so is whoever
waits for a command that is done; these messages are hints, and losing one costs nothing but time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, TypeVar

from channels.layers import get_channel_layer  # type: ignore[import-untyped]
from django.db import DatabaseError, DataError, IntegrityError, connection, connections, models, transaction
from django.utils import timezone

from scheduler.gpus import Card
from web import audit
from web.models import AllocationEvent, Claim, Command, Container, Gpu, Node, UsageSample
from web.people.allowances import require_promise
from web.services.issuing import outcome_channel

log = logging.getLogger(__name__)
T = TypeVar("T")

PAUSE = 0.05  # seconds between two flushes, unless somebody waits for an answer
RETRY = 1.0
BATCH = 5000  # rows of one kind in one transaction
SAMPLES_KEPT = 200_000  # while the database is away
BIGGEST = 2**63 - 1
Row = tuple[type[models.Model], Any]  # and its key: a claim's are those of its container and its GPU
_Rows = dict[Row, dict[str, Any]]
Batch = tuple[_Rows, list[AllocationEvent], list[UsageSample]]


class Store:
    """`node` is the name of this host. What happens is stamped when it is told, not when it is written."""

    def __init__(self, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = node
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        self._layer = get_channel_layer()
        self._node = 0
        self._gpus: dict[str, int] = {}
        self._rows: _Rows = {}
        self._writing: _Rows = {}  # by the flush that is under way
        self._written: _Rows = {}
        self._events: list[AllocationEvent] = []
        self._samples: list[UsageSample] = []
        self._dirty = asyncio.Event()
        self._awaited = asyncio.Event()
        self._flushing = asyncio.Lock()

    # ---- what is so now ----

    def node(self, **fields: Any) -> None:
        self._put(Node, self._node, fields)

    def gpu(self, uuid: str, **fields: Any) -> None:
        self._put(Gpu, self._gpus[uuid], fields)

    def container(self, id_: str, **fields: Any) -> None:
        self._put(Container, id_, fields)

    def claim(self, container: str, gpu: str, **fields: Any) -> None:
        self._put(Claim, (container, self._gpus[gpu]), fields)

    def command(self, id_: Any, **fields: Any) -> None:
        self._put(Command, id_, fields)
        if "done_at" in fields:
            self._awaited.set()

    def taken(self, command: Any) -> None:
        """When that was is written with whatever is written next: what it sets off is not to wait for it."""
        self._rows.setdefault((Command, command), {})["taken_at"] = timezone.now()

    def _put(self, model: type[models.Model], pk: Any, fields: Mapping[str, Any]) -> None:
        row = (model, pk)
        # What is written once needs no comparing, and would be kept for ever.
        written = self._written.setdefault(row, {}) if model is not Command else {}
        waiting, writing = self._rows.get(row, {}), self._writing.get(row, {})

        def last(name: str) -> Any:
            return waiting.get(name, writing.get(name, written.get(name, ...)))

        new = {name: value for name, value in fields.items() if last(name) != value}
        if new:
            self._rows.setdefault(row, {}).update(new)
            self._dirty.set()

    def forget(self, container: str, gpus: list[str]) -> None:
        """It has ended: nothing about it is going to change any more."""
        self._written.pop((Container, container), None)
        for gpu in gpus:
            self._written.pop((Claim, (container, self._gpus[gpu])), None)

    # ---- what happened: broker.Journal ----

    def event(
        self, kind: str, container: str, *, gpu: str = "", pid: int | None = None, size: int = 0,
        used_after: int | None = None, waited: float = 0.0, policy: str = "", detail: str = "",
        at: datetime | None = None,
    ) -> None:  # fmt: skip
        """`at`: when it happened, if that is not now."""
        self._events.append(
            AllocationEvent(
                at=at or timezone.now(),
                kind=kind,
                container_id=container,
                gpu_id=self._gpus.get(gpu),
                pid=pid,
                bytes=min(size, BIGGEST),
                used_after=used_after,
                waited=waited,
                policy=policy,
                detail=detail[:500],
            )
        )
        self._dirty.set()

    def sample(self, container: str | None, gpu: str, at: datetime, **fields: Any) -> None:
        self._samples.append(UsageSample(at=at, gpu_id=self._gpus[gpu], container_id=container, **fields))
        self._dirty.set()

    def suspended(self, container: str, since: float | None, before: float) -> None:
        at = None if since is None else self.wall(since)
        self.container(container, suspended_since=at, suspended_seconds=before)

    def wall(self, monotonic: float) -> datetime:
        return timezone.now() - timedelta(seconds=self._clock() - monotonic)

    def monotonic(self, at: datetime) -> float:
        return self._clock() - (timezone.now() - at).total_seconds()

    # ---- writing ----

    async def run(self) -> None:
        """Writes what there is to write, outcomes at once, all else at most every `PAUSE` seconds, until cancelled."""
        while True:
            await self._dirty.wait()
            try:
                await self.flush()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._awaited.wait(), PAUSE)
            except DatabaseError as error:
                log.error("the database does not take what is to be written, trying again: %s", error)
                await asyncio.sleep(RETRY)

    async def flush(self) -> None:
        """Writes everything remembered so far. Raises DatabaseError, keeping what was not written."""
        await asyncio.shield(asyncio.create_task(self._flush()))  # what it has taken out goes down with no one

    @property
    def waiting(self) -> bool:
        """Whether anything told has not been written yet."""
        return self._flushing.locked() or bool(self._rows or self._events or self._samples)

    async def _flush(self) -> None:
        async with self._flushing:
            self._dirty.clear()
            self._awaited.clear()
            self._writing, self._rows = self._rows, {}
            events, self._events = self._events[:BATCH], self._events[BATCH:]
            samples, self._samples = self._samples[:BATCH], self._samples[BATCH:]
            rows = self._writing
            try:
                await self._write([(rows, events, samples)])
            finally:
                self._writing = {}
            if self._events or self._samples:
                self._dirty.set()
            await self._hint([pk for (model, pk), fields in rows.items() if model is Command and "done_at" in fields])

    async def _write(self, batches: list[Batch]) -> None:
        """In order. One with something in it that the database will never take is written in parts, without that."""
        while batches:
            batch = batches[0]
            try:
                await self.ask(_write, *batch)
            except (IntegrityError, DataError):
                parts = _parts(*batch)
                if len(parts) == 1:
                    log.exception("the database does not take %s", parts[0])
                    parts = []
                batches[:1] = parts
            except DatabaseError:
                for rest in reversed(batches):
                    self._put_back(*rest)
                raise
            else:
                self._note_written(batches.pop(0)[0])

    def _put_back(self, rows: _Rows, events: list[AllocationEvent], samples: list[UsageSample]) -> None:
        for row, fields in rows.items():
            self._rows[row] = {**fields, **self._rows.get(row, {})}
        self._events[:0] = events
        self._samples = (samples + self._samples)[-SAMPLES_KEPT:]
        self._dirty.set()

    def _note_written(self, rows: _Rows) -> None:
        for row, fields in rows.items():
            if fields.get("finished_at") or fields.get("removed_at"):
                self._written.pop(row, None)
            elif row in self._written:
                self._written[row].update(fields)

    async def _hint(self, done: Sequence[Any]) -> None:
        """`done` are commands."""
        if self._layer is None:
            return
        try:
            for command in done:
                await self._layer.send(outcome_channel(command), {"type": "command.done"})
            await self._layer.group_send("live", {"type": "live.changed"})
        except Exception as error:  # whatever the layer is made of: a lost hint is no failure
            log.warning("the channel layer does not take a hint: %s", error)

    async def close(self) -> None:
        try:
            while self.waiting:
                await self.flush()
        except DatabaseError:
            log.exception("not everything could be written")
        await self.ask(connections.close_all)
        self._thread.shutdown()

    async def ask(self, query: Callable[..., T], *arguments: Any) -> T:
        """Runs a query in the database's thread, which keeps its connection for the next."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _ask, query, *arguments)

    # ---- reading, and what must be there before anything follows from it ----

    async def open(self, cards: Mapping[str, Card], **node: Any) -> None:
        """Makes this host and its cards known."""
        self._node, self._gpus = await self.ask(_open, self._name, list(cards.values()), node)

    async def commands(self) -> list[Command]:
        """What is to be done, in order."""
        return await self.ask(_commands)

    async def living(self) -> list[Container]:
        """Containers that have not ended and were launched here, with their claims."""
        return await self.ask(_living, self._node)

    async def told(self) -> dict[str, dict[str, int]]:
        """What containers that have not ended used by the last event that said so: container → GPU → bytes."""
        uuids = {pk: uuid for uuid, pk in self._gpus.items()}
        told: dict[str, dict[str, int]] = {}
        for container, gpu, used in await self.ask(_told, self._node):
            if gpu in uuids:
                told.setdefault(str(container), {})[uuids[gpu]] = used
        return told

    async def leftovers(self) -> list[Container]:
        """Ended containers that the engine still has, though they were to be removed when done."""
        return await self.ask(_leftovers, self._node)

    async def kept(self) -> list[str]:
        """Ended containers that this node's engine should still have."""
        return await self.ask(_kept, self._node)

    async def promise(self, container: Container, quota: Mapping[str, int], *, within_allowance: bool) -> None:
        """Makes or changes the claims of a container: bytes by GPU.

        Raises Problem if `within_allowance` is to be looked at and the owner may not have that.
        """
        sizes = {self._gpus[gpu]: size for gpu, size in quota.items()}
        async with self._flushing:  # an earlier quota that is still to be written must not come after this one
            await self.ask(_promise, container, self._node, sizes, within_allowance)
            for gpu, size in sizes.items():
                row = (Claim, (str(container.pk), gpu))
                self._rows.get(row, {}).pop("quota", None)
                self._written.setdefault(row, {})["quota"] = size

    async def promised(self, container: Container) -> dict[str, int]:
        """What a container was promised before: bytes by GPU."""
        found = await self.ask(_promised, container)
        return {gpu: found[pk] for gpu, pk in self._gpus.items() if pk in found}

    async def nothing_held(self, *, except_by: Sequence[str]) -> None:
        """Containers other than these have ended; a scheduler that was killed may not have written what came back."""
        await self.ask(_nothing_held, self._node, except_by)

    async def removed(self, ids: Sequence[str]) -> list[str]:
        """Those of these containers that count as removed."""
        return await self.ask(_removed, ids)


def _ask(query: Callable[..., T], *arguments: Any) -> T:
    connection.close_if_unusable_or_obsolete()
    return query(*arguments)


def _parts(rows: _Rows, events: list[AllocationEvent], samples: list[UsageSample]) -> list[Batch]:
    """A batch as batches of one."""
    return [
        *(({row: fields}, [], []) for row, fields in rows.items()),
        *(({}, [event], []) for event in events),
        *(({}, [], [sample]) for sample in samples),
    ]


def _write(rows: _Rows, events: list[AllocationEvent], samples: list[UsageSample]) -> None:
    with transaction.atomic():
        for (model, pk), fields in rows.items():
            key = {"container_id": pk[0], "gpu_id": pk[1]} if model is Claim else {"pk": pk}
            model._default_manager.filter(**key).update(**fields)
        audit.append(events)
        UsageSample.objects.bulk_create(samples)


def _open(name: str, cards: list[Card], fields: Mapping[str, Any]) -> tuple[int, dict[str, int]]:
    with transaction.atomic():
        node, _ = Node.objects.update_or_create(name=name, defaults=fields)
        Gpu.objects.filter(node=node).update(present=False)
        known = {}
        for card in cards:
            gpu, _ = Gpu.objects.update_or_create(
                uuid=card.uuid,
                defaults={
                    "node": node,
                    "index": card.index,
                    "name": card.name,
                    "present": True,
                    "simulated": card.simulated,
                    "total": card.total,
                    "capacity": card.capacity(0),
                    "context": card.context,
                },
            )
            known[card.uuid] = gpu.pk
        return node.pk, known


def _commands() -> list[Command]:
    return list(Command.objects.filter(done_at=None).select_related("container__owner", "issued_by"))


def _living(node: int) -> list[Container]:
    living = Container.objects.live().filter(node=node).order_by("created_at")
    return list(living.whole())


def _told(node: int) -> list[tuple[Any, int, int]]:
    said = AllocationEvent.objects.filter(container=models.OuterRef("container"), gpu=models.OuterRef("gpu"))
    last = said.filter(used_after__isnull=False).order_by("-at", "-id").values("used_after")[:1]
    claims = Claim.objects.filter(container__node=node, container__in=Container.objects.live().order_by())
    known = claims.order_by().annotate(said=models.Subquery(last)).filter(said__isnull=False)
    return list(known.values_list("container", "gpu", "said"))


def _leftovers(node: int) -> list[Container]:
    done = Container.objects.filter(node=node, remove_when_done=True, removed_at=None, finished_at__isnull=False)
    return list(done.exclude(engine_id=""))


def _kept(node: int) -> list[str]:
    """Those of another engine, from before this node changed its own, are not for this one to tell about."""
    ended = Container.objects.filter(
        node=node, engine=models.F("node__engine"), removed_at=None, finished_at__isnull=False
    )
    return [str(id_) for id_ in ended.exclude(engine_id="").order_by().values_list("pk", flat=True)]


def _nothing_held(node: int, except_by: Sequence[str]) -> None:
    stale = Claim.objects.filter(container__node=node).exclude(used=0, granted=0, overhead=0, unexplained=0)
    stale.exclude(container__pk__in=except_by).update(used=0, granted=0, overhead=0, unexplained=0, processes=[])


def _removed(ids: Sequence[str]) -> list[str]:
    removed = Container.objects.filter(pk__in=ids, removed_at__isnull=False)
    return [str(id_) for id_ in removed.values_list("pk", flat=True)]


def _promise(container: Container, node: int, quota: Mapping[int, int], within_allowance: bool) -> None:
    """In one transaction, or two promises could pass an allowance that has room for one."""
    claims = [Claim(container=container, gpu_id=gpu, quota=size) for gpu, size in quota.items()]
    with transaction.atomic():
        if within_allowance:
            require_promise(container, sum(quota.values()))
        Container.objects.filter(pk=container.pk).update(node=node)
        Claim.objects.bulk_create(
            claims, update_conflicts=True, unique_fields=["container", "gpu"], update_fields=["quota"]
        )


def _promised(container: Container) -> dict[int, int]:
    return dict(Claim.objects.filter(container=container).order_by().values_list("gpu_id", "quota"))
