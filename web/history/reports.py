"""The audit report: who held how much VRAM for how long, computed, waited, and was refused, over a span of time.

Computed from raw events each time, so there is no second account that could differ; what was computed from samples, so
as finely as those are still kept. `rows` is what REST, CSV and the printable page show.
"""

import csv
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.db.models import Q, Sum
from django.db.models.functions import TruncDay
from django.utils import timezone

from web.history import fairness
from web.history.samples import samples_within
from web.history.spans import Held, Rejected, Waited, spans
from web.models import AllocationEvent, Container, large
from web.people.roles import Role
from web.sizes import percents

HOUR = 3600.0
GIB_HOUR = 2**30 * 3600 * 10**6  # in byte-microseconds
WEEK = timedelta(days=7)
_MICROSECOND = timedelta(microseconds=1)
Counted = Held | Waited | Rejected  # what a report is about


@dataclass(slots=True)
class Row:
    """One line of a report. Exact inside (bytes × microseconds); `as_dict` gives the units that people read."""

    group: str
    byte_microseconds: int = 0
    suspended_microseconds: int = 0
    peak: int = 0  # most that one container held on one GPU at once
    rejects: int = 0
    gpu_seconds: float | None = None  # that it computed, over all its GPUs; None: not known of any time
    due_seconds: float | None = None  # of turns that were due to it; None: there were none
    waits: list[float] = field(default_factory=list)  # seconds each
    had: float | None = None  # of a person: GiB × hours of the ledger (fairness.py), and what was due
    due: float | None = None
    containers: set[UUID] = field(default_factory=set)

    def add(self, container: UUID, span: Counted) -> None:
        self.containers.add(container)
        match span:
            case Held(_, start, end, size):
                self.byte_microseconds += size * ((end - start) // _MICROSECOND)
                self.peak = max(self.peak, size)
            case Waited(start, end):
                self.suspended_microseconds += (end - start) // _MICROSECOND
                self.waits.append((end - start).total_seconds())
            case Rejected():
                self.rejects += 1

    def compute(self, container: UUID, seconds: float, due: float | None) -> None:
        self.containers.add(container)
        self.gpu_seconds = (self.gpu_seconds or 0.0) + seconds
        self.due_seconds = self.due_seconds if due is None else (self.due_seconds or 0.0) + due

    def as_dict(self) -> dict[str, Any]:
        gib_hours = self.byte_microseconds / GIB_HOUR
        gpu_hours = None if self.gpu_seconds is None else self.gpu_seconds / HOUR
        vram_cost, gpu_cost = gib_hours * settings.GPUSHARE_PRICE, (gpu_hours or 0.0) * settings.GPUSHARE_GPU_PRICE
        return {
            "group": self.group,
            "containers": len(self.containers),
            "vram_gib_hours": gib_hours,
            "gpu_hours": gpu_hours,
            "peak": self.peak,
            "suspended_seconds": self.suspended_microseconds / 1e6,
            "wait_mean": fairness.mean(self.waits),
            "wait_p95": fairness.p95(self.waits),
            "had_gib_hours": self.had,
            "due_gib_hours": self.due,
            "due_gpu_hours": None if self.due_seconds is None else self.due_seconds / HOUR,
            "rejects": self.rejects,
            "vram_cost": vram_cost,
            "gpu_cost": gpu_cost,
            "cost": vram_cost + gpu_cost,
        }


COLUMNS = tuple(Row("").as_dict())


@dataclass(frozen=True, slots=True)
class Report:
    start: datetime
    end: datetime
    group_by: str
    rows: list[Row]
    total: Row

    def shares(self) -> list[tuple[dict[str, Any], int]]:
        """Each row with what it is of all VRAM-hours, in percent: together 100."""
        return list(zip(
            [row.as_dict() for row in self.rows], percents([row.byte_microseconds for row in self.rows]), strict=True
        ))  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        return {
            "from": self.start,
            "to": self.end,
            "group_by": self.group_by,
            "rows": [row.as_dict() for row in self.rows],
            "total": self.total.as_dict(),
        }


def report(start: datetime, end: datetime, group_by: str = "user", owner: str = "") -> Report:
    """What happened in [start, end). Rows come with the most VRAM-hours first, days in their order."""
    chosen = Q(owner__username=owner) if owner else Q()
    key_of = _grouping(group_by, chosen)
    rows: dict[str, Row] = {}
    total = Row("total")

    def row_of(container: UUID, at: datetime) -> Row:
        key = key_of(container, at)
        return rows.setdefault(key, Row(key))

    for container, span in _counted(chosen, start, end):
        for part in _days(span) if group_by == "day" else (span,):
            row_of(container, _time_of(part)).add(container, part)
        total.add(container, span)
    for container, day, seconds, due in _computed(owner, start, end):
        for row in (row_of(container, day), total):
            row.compute(container, seconds, due)
    if group_by == "user":
        for person, had, due in fairness.used(start, end, **({"person": owner} if owner else {})):
            for row in (rows.setdefault(person, Row(person)), total):
                row.had, row.due = (row.had or 0.0) + had, (row.due or 0.0) + due
    ordered = sorted(rows.values(), key=lambda row: row.group)
    if group_by != "day":
        ordered.sort(key=lambda row: -row.byte_microseconds)
    return Report(start, end, group_by, ordered, total)


def _counted(chosen: Q, start: datetime, end: datetime) -> Iterator[tuple[UUID, Counted]]:
    for container, found in spans(chosen, start, end):
        yield from ((container, span) for span in found if isinstance(span, Counted))


def _computed(owner: str, start: datetime, end: datetime) -> Iterator[tuple[UUID, datetime, float, float | None]]:
    """Each container's seconds of computing by day, over all its GPUs, where that is known, and those due by turns."""
    samples = samples_within(start, end, had__isnull=False, **({"container__owner__username": owner} if owner else {}))
    by_day = samples.annotate(day=TruncDay("at", tzinfo=UTC)).values_list("container", "day")
    yield from by_day.annotate(Sum("had"), Sum("due")).iterator(chunk_size=10_000)


TRANSFERS = 100  # that a page lists; REST has all


def transfers(start: datetime, end: datetime, owner: str = "") -> list[AllocationEvent]:
    """What was moved to host memory and back in [start, end), the last first."""
    kinds = (AllocationEvent.Kind.SWAPPED_OUT, AllocationEvent.Kind.SWAPPED_IN)
    found = AllocationEvent.objects.filter(kind__in=kinds, at__gte=start, at__lt=end)
    if owner:
        found = found.filter(container__owner__username=owner)
    found = found.select_related("container__owner").defer(*large("container__"))
    return list(found.order_by("-id")[:TRANSFERS])


def gib_hours(owner: str, start: datetime, end: datetime) -> float:
    """VRAM that this person's containers held in [start, end), GiB × hours."""
    total = Row("total")
    for container, span in _counted(Q(owner__username=owner), start, end):
        total.add(container, span)
    return total.byte_microseconds / GIB_HOUR


def gib_hours_of_week(user: User) -> float:
    """What somebody held in the last seven days. Reads all events of that time."""
    now = timezone.now()
    return gib_hours(user.get_username(), now - WEEK, now)


NONE = "(none)"
GROUPINGS = ("user", "group", "container", "image", "namespace", "node", "day")


def _grouping(group_by: str, chosen: Q) -> Callable[[UUID, datetime], str]:
    if group_by == "day":
        return lambda container, at: at.date().isoformat()
    path = {"user": "owner__username", "group": "owner_id", "container": "name", "node": "node__name"}.get(
        group_by, group_by
    )
    names: Mapping[UUID, Any] = dict(Container.objects.filter(chosen).values_list("pk", path))
    if group_by == "container":
        return lambda container, at: f"{names[container]} ({str(container)[:8]})"
    if group_by == "group":
        groups = _groups_of_people()
        return lambda container, at: groups[names[container]]
    return lambda container, at: str(names[container] or NONE)


def _groups_of_people() -> Mapping[int, str]:
    """Each person's groups in one text, roles left out: somebody in two groups is a line of its own, counted once."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    roles = [role.group for role in Role]
    members = Group.objects.exclude(name__in=roles).exclude(user=None).order_by("name").values_list("user", "name")
    for person, name in members:
        names[person].append(name)
    return defaultdict(lambda: NONE, {person: " + ".join(held) for person, held in names.items()})


def _time_of(span: Counted) -> datetime:
    return (span.at if isinstance(span, Rejected) else span.start).astimezone(UTC)


def _days(span: Counted) -> Iterator[Counted]:
    """The same span, cut at each midnight UTC."""
    if isinstance(span, Rejected):
        yield span
        return
    start = span.start.astimezone(UTC)
    while start < span.end:
        midnight = start.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        end = min(midnight, span.end)
        yield replace(span, start=start, end=end)
        start = end


def csv_lines(found: Report) -> Iterator[str]:
    """The report line by line, with a header whose first name is what it is by. Spreadsheets make their own total."""
    writer = csv.writer(_Echo())
    yield writer.writerow([found.group_by, *COLUMNS[1:]])
    for row in found.rows:
        yield writer.writerow([_plain(value) for value in row.as_dict().values()])


async def csv_stream(found: Report) -> AsyncIterator[str]:
    """The same for an answer: an ASGI server would read a plain iterator to its end before it sends a byte."""
    for line in csv_lines(found):
        yield line


_FORMULAS = frozenset("=+-@\t\r\n＝＋－＠")


def _plain(value: Any) -> Any:
    """A spreadsheet would run text that begins like a formula, in East Asia's wide signs too. Numbers stay numbers."""
    return "'" + value if isinstance(value, str) and value.lstrip(" ")[:1] in _FORMULAS else value


class _Echo:
    """A file that gives back what is written to it: csv's way to a line without a buffer."""

    def write(self, line: str) -> str:
        return line
