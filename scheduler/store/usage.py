"""What people have had of the cards, and were due: what the database has of it, and what this host writes.

Each host writes the rows of its own cards and reads those of all. Rows say when they were true by the database's clock,
as far as this host knows it, and are decayed to the present when they are read: in between nobody has to touch them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Sum
from django.db.models.functions import Now

from scheduler.clock import wall
from scheduler.core.people.ledger import GIB_HOUR, Account, decayed
from scheduler.store.database import Here
from scheduler.store.journal import Journal
from scheduler.store.node_snapshot import Rows, of_row
from scheduler.store.write_behind import WriteBehind
from web.models import Gpu, Node, Usage, UsageHour
from web.people import shares

HOUR = 3600
Accounts = dict[str, dict[str, Account]]  # GPU → person → what it has there, now


@dataclass(frozen=True, slots=True)
class Before:
    """What an earlier scheduler of this host has counted. `hours`: of this hour, by GPU and person. `forgiven`: which
    of the times that somebody was forgiven these accounts take into account."""

    accounts: Accounts = field(default_factory=dict)
    hours: Mapping[tuple[str, str], Account] = field(default_factory=dict)
    forgiven: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    """What is due to whom, and what other hosts have counted. `capacity`: bytes of their cards."""

    due: shares.Current
    elsewhere: Mapping[str, Account]
    capacity: int


class UsageRecords:
    def __init__(self, behind: WriteBehind, here: Here) -> None:
        self._behind, self._here = behind, here
        self.skew = 0.0  # seconds by which this host's clock is ahead of the database's

    def now(self) -> datetime:
        return datetime.fromtimestamp(wall() - self.skew, UTC)

    @property
    def hour(self) -> int:
        """The present one, in hours since 1970."""
        return int(wall() - self.skew) // HOUR

    async def before(self) -> Before:
        """For a start. Raises DatabaseError; after a start without the database it is what this host kept."""
        uuids = {pk: uuid for uuid, pk in self._here.gpus.items()}
        if self._here.alone:
            kept = await self._behind.snapshot()
            return _before([(uuids[gpu], row) for gpu, row in kept.usage() if gpu in uuids], {}, self.now())
        rows, hours, now = await self._behind.ask(_read_own, list(uuids), self.hour)
        if self._behind.journal:
            known: Rows = {(Usage, (row.gpu_id, row.person)): of_row(row) for row in rows}
            await self._behind.journal.note(Journal.learn, known, (Usage,))
        this_hour = {(uuids[gpu], person): Account(had * GIB_HOUR, due * GIB_HOUR) for gpu, person, had, due in hours}
        return _before([(uuids[row.gpu_id], row) for row in rows], this_hour, now)

    async def given(self) -> Given:
        """Raises DatabaseError."""
        return await self._behind.ask(_read_given, list(self._here.gpus.values()), self._here.node)

    def standing(self, gpu: str, person: str, **fields: Any) -> None:
        """`ratio`, and `share`: bytes of this card that are due now, or None."""
        self._behind.put(Usage, (self._here.gpus[gpu], person), fields)

    def counted(self, gpu: str, person: str, account: Account, forgiven: int) -> None:
        """What the person has on this card now."""
        had, due = account.had / GIB_HOUR, account.due / GIB_HOUR
        self.standing(gpu, person, had=had, due=due, at=self.now(), forgiven=forgiven)

    def counted_in(self, hour: int, gpu: str, person: str, account: Account) -> None:
        """What it had in this hour so far, not decayed."""
        fields = {"had": account.had / GIB_HOUR, "due": account.due / GIB_HOUR}
        self._behind.put(UsageHour, (self._here.gpus[gpu], person, hour), fields)

    def over(self, hour: int, gpu: str, person: str) -> None:
        """Nothing more comes of this hour."""
        self._behind.forget_row((UsageHour, (self._here.gpus[gpu], person, hour)))


def _before(rows: list[tuple[str, Usage]], hours: Mapping[tuple[str, str], Account], now: datetime) -> Before:
    """Of a card that was not here when somebody was forgiven, what they had there is left out."""
    forgiven: dict[str, int] = {}
    for _, row in rows:
        forgiven[row.person] = max(row.forgiven, forgiven.get(row.person, 0))
    accounts: Accounts = {}
    for gpu, row in rows:
        if row.forgiven == forgiven[row.person]:
            accounts.setdefault(gpu, {})[row.person] = _account(row, now)
    return Before(accounts, hours, forgiven)


def _account(row: Usage, now: datetime) -> Account:
    """Decayed to now. What another host has written may be anything that PostgreSQL takes."""
    age = (now - row.at) / timedelta(seconds=1)
    return decayed(Account(max(0.0, row.had) * GIB_HOUR, max(0.0, row.due) * GIB_HOUR), age)


def _read_own(gpus: list[int], hour: int) -> tuple[list[Usage], list[tuple[int, str, float, float]], datetime]:
    own = UsageHour.objects.filter(gpu__in=gpus, hour=hour).values_list("gpu", "person", "had", "due")
    return list(Usage.objects.filter(gpu__in=gpus)), list(own), _database_now()


def _read_given(gpus: list[int], node: int) -> Given:
    now = _database_now()
    due = shares.current(now)
    sums: dict[str, Account] = {}
    for row in Usage.objects.exclude(gpu__in=gpus):
        if row.forgiven == due.forgiven.get(row.person, 0):  # else its host has not heard of it yet
            sums[row.person] = sums.get(row.person, Account()).plus(_account(row, now))
    others = Gpu.objects.filter(present=True, node__in=Node.objects.listed()).exclude(node=node)
    return Given(due, sums, others.aggregate(total=Sum("most"))["total"] or 0)


def _database_now() -> datetime:
    """By the database's clock, which is the same for all hosts; where it is a file, this host's own."""
    if connection.vendor == "sqlite":
        return datetime.fromtimestamp(wall(), UTC)
    return Node.objects.annotate(at=Now()).values_list("at", flat=True).first() or datetime.fromtimestamp(wall(), UTC)
