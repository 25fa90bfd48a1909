"""From raw events to spans of time: when a container held how much, when it was suspended, paused or swapped.

The only reading of events: whatever is charged, shown in a report or in a container's life comes from here, so
that reports, allowances, pages and the audit log cannot disagree. Time is counted in whole microseconds and sizes in
bytes: sums are exact, in whatever order they are made.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby, takewhile
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from web.models import AllocationEvent, Container
from web.models.states import LOST

EventKind = AllocationEvent.Kind
_LINGERING = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Held:
    """`bytes` were held on one GPU from `start` to `end`. Never empty, never overlapping for one GPU."""

    gpu: int
    start: datetime
    end: datetime
    bytes: int


@dataclass(frozen=True, slots=True)
class Waited:
    """At least one allocation call waited from `start` to `end`."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Paused:
    """It was frozen from `start` to `end`; a call of it may have waited all the same."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Swapped:
    """What it had on its cards was in host memory from `start` to `end`."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Rejected:
    at: datetime


Span = Held | Waited | Paused | Swapped | Rejected

# All events that say when it was suspended, paused or swapped. There are few: what it held changes each second.
STANDING = (
    EventKind.SUSPENDED,
    EventKind.RESUMED,
    EventKind.REJECTED,
    EventKind.PAUSED,
    EventKind.UNPAUSED,
    EventKind.SWAPPED_OUT,
    EventKind.SWAPPED_IN,
    EventKind.ENDED,
)


@dataclass(frozen=True, slots=True)
class Event:
    at: datetime
    kind: str
    gpu: int | None
    used_after: int | None
    waited: float


def spans(
    chosen: Q, start: datetime, end: datetime, kinds: Collection[str] | None = None
) -> Iterator[tuple[UUID, Iterator[Span]]]:
    """What each of the `chosen` containers did in [start, end), as far as events of `kinds` (None: all) tell it."""
    # The engine says that it ended a moment before the card has all memory back: the events decide.
    lately = Q(finished_at=None) | Q(finished_at__gte=start - _LINGERING)
    alive = Container.objects.filter(chosen, lately, created_at__lt=end)
    now = timezone.now()
    finished = {
        pk: (at or min(end, now + timedelta(seconds=ahead)), why == LOST)  # what goes on still ends by its own clock
        for pk, at, why, ahead in alive.values_list("pk", "finished_at", "reason", "clock_ahead")
    }
    events_of = AllocationEvent.objects.filter(container__in=alive.order_by().values("pk"), at__lt=end)
    if kinds is not None:
        events_of = events_of.filter(kind__in=kinds)
    rows = events_of.order_by("container_id", "id").values_list(
        "container_id", "at", "kind", "gpu_id", "used_after", "waited"
    )
    for container, events in groupby(rows.iterator(chunk_size=10_000), key=lambda row: row[0]):
        at, lost = finished.get(container, (end, False))
        last = min(at, end)
        read = (Event(*row[1:]) for row in events)
        yield container, clip(trace(_until(last, read) if lost else read, last), start)


def _until(last: datetime, events: Iterable[Event]) -> Iterator[Event]:
    """Without what a node that was removed by force reported later, if it went on: nobody is charged for that."""
    return takewhile(lambda event: event.at <= last, events)


def trace(events: Iterable[Event], end: datetime) -> Iterator[Span]:
    """One container's spans, from all its events up to `end`, in their order. What is still open ends at `end`.

    An event whose time is before that of an earlier one, as a clock was set back in between, counts as of the same
    time: no span is negative, and none overlaps another of its kind.
    """
    ledger, latest = _Ledger(), None
    for event in events:
        if latest is not None and event.at < latest:
            event = replace(event, at=latest)
        latest = event.at
        yield from ledger.take(event)
    yield from ledger.close(end)


@dataclass(slots=True)
class _Ledger:
    held: dict[int, tuple[datetime, int]] = field(default_factory=dict)  # by GPU: since when, how many bytes
    waiting: int = 0
    waiting_since: datetime | None = None
    paused_since: datetime | None = None
    swapped_since: datetime | None = None

    def take(self, event: Event) -> Iterator[Span]:
        if event.kind == EventKind.ENDED:
            yield from self.close(event.at)
            return
        if event.gpu is not None and event.used_after is not None:
            yield from self._hold(event.gpu, event.at, event.used_after)
        if event.kind == EventKind.SUSPENDED:
            # One that has waited already was asked again of a restarted scheduler: it stands for all before it.
            self.waiting = 1 if event.waited > 0 else self.waiting + 1
            self.waiting_since = self.waiting_since or event.at
        elif event.kind == EventKind.RESUMED or (event.kind == EventKind.REJECTED and event.waited > 0):
            # Without a GPU it is not said of one call: none of the container's waits any more.
            self.waiting = 0 if event.gpu is None else max(0, self.waiting - 1)
            if self.waiting == 0:
                yield from self._stop_waiting(event.at)
        elif event.kind == EventKind.PAUSED:
            self.paused_since = self.paused_since or event.at
        elif event.kind == EventKind.UNPAUSED:
            yield from self._stop_pausing(event.at)
        elif event.kind == EventKind.SWAPPED_OUT:
            self.swapped_since = self.swapped_since or event.at
        elif event.kind == EventKind.SWAPPED_IN:
            yield from self._stop_swapping(event.at)
        if event.kind == EventKind.REJECTED:
            yield Rejected(event.at)

    def close(self, at: datetime) -> Iterator[Span]:
        for gpu in list(self.held):
            yield from self._hold(gpu, at, 0)
        self.waiting = 0
        yield from self._stop_waiting(at)
        yield from self._stop_pausing(at)
        yield from self._stop_swapping(at)

    def _hold(self, gpu: int, at: datetime, size: int) -> Iterator[Span]:
        since, before = self.held.pop(gpu, (at, 0))
        if before > 0 and at > since:
            yield Held(gpu, since, at, before)
        if size > 0:
            self.held[gpu] = (max(at, since), size)

    def _stop_waiting(self, at: datetime) -> Iterator[Span]:
        if self.waiting_since is not None and at > self.waiting_since:
            yield Waited(self.waiting_since, at)
        self.waiting_since = None

    def _stop_pausing(self, at: datetime) -> Iterator[Span]:
        if self.paused_since is not None and at > self.paused_since:
            yield Paused(self.paused_since, at)
        self.paused_since = None

    def _stop_swapping(self, at: datetime) -> Iterator[Span]:
        if self.swapped_since is not None and at > self.swapped_since:
            yield Swapped(self.swapped_since, at)
        self.swapped_since = None


def clip(found: Iterable[Span], start: datetime) -> Iterator[Span]:
    """Only what lies at or after `start`."""
    for span in found:
        match span:
            case Held(gpu, since, end, size) if end > start:
                yield Held(gpu, max(since, start), end, size)
            case Waited(since, end) if end > start:
                yield Waited(max(since, start), end)
            case Paused(since, end) if end > start:
                yield Paused(max(since, start), end)
            case Swapped(since, end) if end > start:
                yield Swapped(max(since, start), end)
            case Rejected(at) if at >= start:
                yield span
