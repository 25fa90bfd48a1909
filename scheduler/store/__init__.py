"""The only door from the scheduler to the database.

store.container(id_, paused_at=now)      what is so now, or has happened: written later (write_behind.py)
await store.records.living()             what is asked (records.py)
await store.promises.make(row, quota)    what must be there before anything follows from it (promises.py)
await store.volumes.mount(name, …)       the same of what Docker starts (volumes.py)
store.usage.counted(gpu, person, …)      what people have had of the cards (usage.py)
await store.reservations.due(seconds)     what is reserved on these cards (reservations.py)
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction

from scheduler import clock, threads
from scheduler.clock import FOLDER as CLOCKS
from scheduler.clock import Clocks, now, wall
from scheduler.figures import Figures
from scheduler.gpus import Card
from scheduler.store import node_lease, node_snapshot, pending_placements
from scheduler.store.cards import CardTaken, make_known, take
from scheduler.store.database import Database, Here
from scheduler.store.journal import BYTES as JOURNAL_BYTES
from scheduler.store.journal import NAME as JOURNAL_FILE
from scheduler.store.journal import AsyncJournal, Journal
from scheduler.store.promises import Promises
from scheduler.store.records import Records
from scheduler.store.reservations import ReservationRecords
from scheduler.store.usage import UsageRecords
from scheduler.store.volumes import Volumes
from scheduler.store.write_behind import WriteBehind
from web.models import AllocationEvent, Claim, Command, Container, Gpu, Node, UsageSample
from web.schema import NewerDatabase, refuse_newer
from web.services.issuing import hint_channel

__all__ = ["Store"]

log = logging.getLogger(__name__)

PROMPT = 1.0  # seconds: what took longer says nothing about a clock
AWAY = (OperationalError, InterfaceError)
BIGGEST = 2**63 - 1
OTHER = "what this host has kept is of another database, or another host has had its name meanwhile"


class Store(WriteBehind):
    """`node` is the name of this host, `holder` who has it (node_lease.py).

    An event is stamped when it is reported, not when it is written, by the clock of the container that it is about.
    """

    def __init__(self, node: str, holder: str = "", clock: Callable[[], float] = clock.monotonic) -> None:
        self._here = Here(holder=holder)
        super().__init__(Database(), self._here, _open_journal())
        self._here.journal = self.journal.id if self.journal else ""
        self._name = node
        self._clock = clock
        self._clocks = threads.pool(1, "clocks")
        self.clocks = Clocks(settings.GPUSHARE_HOME / CLOCKS, self._clocks.submit)
        self._contexts: dict[str, int] = {}
        self._living: Callable[[], Sequence[str]] | None = None
        self.figures = Figures()
        self.records = Records(self.database, self._here, self.snapshot)
        self.promises = Promises(self, self._here)
        self.volumes = Volumes(self, self._here)
        self.usage = UsageRecords(self, self._here)
        self.reservations = ReservationRecords(self, self._here, self.usage)

    async def open(self, cards: Mapping[str, Card], contexts: Mapping[str, int], **node: Any) -> dict[str, int]:
        """Makes this host and its cards known. `contexts`: GPU → bytes that a context takes, as far as is measured.

        Returns the same of all that was ever measured. Raises NameTaken, and DatabaseError; not if the database is away
        and this host knows enough by itself: then the name is taken when it is back.
        """
        enter = partial(self._enter, cards, contexts, node)
        try:
            await enter()
        except AWAY as error:
            if not await self._start_alone(cards):
                raise
            log.error("the database is away, and the scheduler starts without it: %s", error)
            self.on_return = partial(self._return, enter)
        if self.journal:  # what is kept, and not set aside, comes before anything is read, however long that takes
            for row, fields in (await self.journal.ask(Journal.rows)).items():
                self.put(*row, fields)
            await (self.durable() if self.away else self.flush())
        return self._contexts

    @staticmethod
    def may_start_alone() -> bool:
        """Whether an earlier scheduler may have left here what `open` needs while the database is away."""
        return connection.vendor != "sqlite" and (settings.GPUSHARE_HOME / JOURNAL_FILE).exists()

    async def speak_for(self, whole: str) -> str:
        """As `pending_placements.speak_for`. A start without the database: an earlier scheduler has asked."""
        return "" if self.on_return is not None else await self.ask(pending_placements.speak_for, self._here, whole)

    async def settle(self, living: Callable[[], Sequence[str]]) -> None:
        """Nobody but those who live holds anything. Raises DatabaseError; not if that is away: then when it is back."""
        self._living = living
        if not self._here.alone:
            await self.promises.nothing_held(except_by=living())

    async def compare_clocks(self) -> None:
        """Tells by how much this host's clock is ahead of the database's. Raises DatabaseError."""
        if self.journal:
            begun = wall()
            theirs = await self.ask(_clock)
            ended = wall()
            if ended - begun < PROMPT:
                self.usage.skew = (begun + ended) / 2 - theirs
                self.node(skew=round(self.usage.skew, 1))

    async def learn(self, rows: Sequence[Container], used: Mapping[str, Mapping[str, int]]) -> None:
        """What the database has of the living, and of no others, for a start without it. `used`: by `last_used`."""
        if self.journal and not self._here.alone:
            living = node_snapshot.of_containers(rows, used)
            await self.journal.note(Journal.learn, living, (Container, Claim))

    async def _enter(self, cards: Mapping[str, Card], contexts: Mapping[str, int], fields: Mapping[str, Any]) -> None:
        node, gpus = await self.ask(_open, self._name, self._here.holder, list(cards.values()), contexts, fields)
        if self.journal:
            await self._meet(node, self.journal)
            await self.journal.note(Journal.learn, node_snapshot.of_node(node, gpus))
        elif not self._numbering:
            self._number += node.last_event
        self._numbering = self._here.node = node.pk
        self._here.gpus.update({gpu.uuid: gpu.pk for gpu in gpus})
        self._contexts = {gpu.uuid: gpu.context for gpu in gpus if gpu.context}

    async def _meet(self, node: Node, journal: AsyncJournal) -> None:
        """What is kept here is of this database, or is set aside; this run's numbers follow those that it has."""
        if node.outbox != journal.id:
            if await journal.ask(Journal.holds_anything):
                if self.on_return is not None:
                    raise node_lease.NameTaken(f"{OTHER}. This scheduler ends; the next one sets that aside.")
                log.error("%s: it is in %s", OTHER, await journal.ask(Journal.set_aside))
            await self.ask(_note_journal, node.pk, journal.id)
            self._here.journal = journal.id
        if self.on_return is None:
            self._number = self._kept = await journal.ask(Journal.next_run, node.last_event)

    async def _start_alone(self, cards: Mapping[str, Card]) -> bool:
        """Whether this host knows itself and all its cards."""
        if self.journal is None:
            return False
        known = await self.snapshot()
        node, name = known.node()
        if name != self._name or not cards.keys() <= known.gpus().keys():
            return False
        self._here.node, self._contexts = node, known.contexts()
        self._here.gpus.update(known.gpus())
        self._number = self._kept = await self.journal.ask(Journal.next_run)
        self.away = self._here.alone = True
        return True

    async def _return(self, enter: Callable[[], Awaitable[None]]) -> None:
        """The database answers again, for the first time since a start without it."""
        try:
            await self.ask(refuse_newer)
        except NewerDatabase as error:
            raise OperationalError(str(error)) from None
        await enter()
        log.warning("the database is back; what happened meanwhile is sent")

    async def _flush(self) -> None:
        await super()._flush()
        if self._here.alone:
            if self._living:  # no earlier: what was kept says what those held who have ended
                await self.promises.nothing_held(except_by=self._living())
            self._here.alone = False
        if self.journal and self.journal.missed:
            await self._learn_anew(self.journal)

    async def _learn_anew(self, journal: AsyncJournal) -> None:
        """All that a start without the database needs."""
        async with self.nothing_written():
            node, gpus = await self.ask(_this_host, self._here)
            rows = node_snapshot.of_node(node, gpus)
            rows |= node_snapshot.of_containers(await self.records.living(), await self.records.last_used())
            rows |= node_snapshot.of_volumes(await self.volumes.there())
            journal.missed = False  # only now; and again if this fails
            await journal.note(Journal.learn, rows, tuple(node_snapshot.NEEDED))

    # ---- what is so now ----

    def node(self, **fields: Any) -> None:
        self.put(Node, self._here.node, fields)

    def gpu(self, uuid: str, **fields: Any) -> None:
        self.put(Gpu, self._here.gpus[uuid], fields)

    def container(self, id_: str, **fields: Any) -> None:
        self.put(Container, id_, fields)

    def claim(self, container: str, gpu: str, **fields: Any) -> None:
        self.put(Claim, (container, self._here.gpus[gpu]), fields)

    def command(self, id_: Any, **fields: Any) -> None:
        self.put(Command, id_, fields)
        if "done_at" in fields:
            self.hurry()

    def taken(self, command: Any) -> None:
        """When that was is written with whatever is written next: what it sets off is not to wait for it."""
        self.with_the_next((Command, command), taken_at=now())

    def forget(self, container: str, gpus: list[str]) -> None:
        """It has ended: nothing about it is going to change any more."""
        self.clocks.forget(container)
        self.forget_row((Container, container))
        for gpu in gpus:
            self.forget_row((Claim, (container, self._here.gpus[gpu])))

    # ---- what happened; no call blocks ----

    def event(
        self, kind: str, container: str, *, gpu: str = "", pid: int | None = None, size: int = 0,
        used_after: int | None = None, waited: float = 0.0, policy: str = "", detail: str = "",
        at: datetime | None = None,
    ) -> None:  # fmt: skip
        """`at`: when it happened, if that is not now."""
        self.figures.event(kind, waited)
        self.happened(
            AllocationEvent(
                at=at or self.clocks.now(container),
                kind=kind,
                container_id=container,
                gpu_id=self._here.gpus.get(gpu),
                pid=pid,
                bytes=min(size, BIGGEST),
                used_after=used_after,
                waited=waited,
                policy=policy,
                detail=detail[:500],
            )
        )

    def sample(self, container: str | None, gpu: str, at: datetime, **fields: Any) -> None:
        self.sampled(UsageSample(at=at, gpu_id=self._here.gpus[gpu], container_id=container, **fields))

    def suspended(self, container: str, since: float | None, before: float) -> None:
        """`since`: monotonic, None when it is not suspended any more. `before`: seconds of all ended waits."""
        at = None if since is None else self.stamp(container, since)
        self.container(container, suspended_since=at, suspended_seconds=before)

    def stamp(self, container: str, monotonic: float) -> datetime:
        """What the container's clock showed then."""
        return self.clocks.now(container) - timedelta(seconds=self._clock() - monotonic)

    def monotonic(self, container: str, at: datetime) -> float:
        """When the container's clock showed this."""
        return self._clock() - (self.clocks.now(container) - at).total_seconds()

    @property
    def here(self) -> int:
        """This host's key. Known once the store is open."""
        return self._here.node

    @property
    def channel(self) -> str:
        """Where hints for this host come. Known once the store is open."""
        return hint_channel(self._here.node)

    async def finish(self) -> None:
        """Writes the rest, and then the name is anybody's."""
        await super().finish()
        await self.ask(node_lease.give_back, self._here)

    async def close(self) -> None:
        await super().close()
        self._clocks.shutdown()


def _open_journal() -> AsyncJournal | None:
    """Where the database is a server: one that is a file here is away only when this host is in trouble itself."""
    if connection.vendor == "sqlite":
        return None
    return AsyncJournal(settings.GPUSHARE_HOME / JOURNAL_FILE, JOURNAL_BYTES)


def _clock() -> float:
    """The database's, in seconds since 1970."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        return float(cursor.fetchone()[0])


def _this_host(here: Here) -> tuple[Node, list[Gpu]]:
    return Node.objects.get(pk=here.node), list(Gpu.objects.filter(pk__in=here.gpus.values()))


def _note_journal(node: int, id_: str) -> None:
    Node.objects.filter(pk=node).update(outbox=id_)


def _open(
    name: str, holder: str, here: list[Card], contexts: Mapping[str, int], fields: Mapping[str, Any]
) -> tuple[Node, list[Gpu]]:
    """Raises NameTaken, and CardTaken: which cards have gone from here is written all the same."""
    with transaction.atomic():
        node = node_lease.take(name, holder, fields)
        why_not = take(node, [card.uuid for card in here])
        known = [] if why_not else make_known(node, here, contexts)
    if why_not:
        raise CardTaken(why_not)
    return node, known
