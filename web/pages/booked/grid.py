"""The calendar as bars: a row for each GPU, a week wide, as high as what is reserved of it. Local time of one zone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from web.models import Announcement, Gpu, Reservation
from web.sizes import format_size

DAYS = 7
WIDE, HIGH = 1000, 100  # units of a row
COLOURS = 10


@dataclass(frozen=True, slots=True)
class Bar:
    """`x`, `y`, `width`, `height`: units. `said`: for who points at it. `mark`: a colour; None: maintenance."""

    x: float
    y: float
    width: float
    height: float
    said: str
    mark: int | None


@dataclass(frozen=True, slots=True)
class Week:
    first: date
    zone: ZoneInfo

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range(DAYS)]

    def place(self, at: datetime) -> float:
        """Where a moment is, by the local clock: each day is as wide, also that on which the clocks are changed."""
        local = at.astimezone(self.zone)
        seconds = local.hour * 3600 + local.minute * 60 + local.second
        days = (local.date() - self.first).days + seconds / 86400
        return WIDE * min(max(days, 0.0), DAYS) / DAYS

    def bar(self, begins: datetime, ends: datetime) -> tuple[float, float] | None:
        """x and width; None: none of it is in this week."""
        x, end = self.place(begins), self.place(ends)
        return (round(x, 2), round(end - x, 2)) if end > x else None


def rows(
    week: Week, gpus: Iterable[Gpu], reservations: Sequence[Reservation], windows: Sequence[Announcement]
) -> list[tuple[Gpu, list[Bar]]]:
    return [(gpu, [*_windows(week, gpu, windows), *_reserved(week, gpu, reservations)]) for gpu in gpus]


def _windows(week: Week, gpu: Gpu, windows: Iterable[Announcement]) -> Iterator[Bar]:
    for each in windows:
        about = each.gpu_id in (None, gpu.pk) and each.node_id in (None, gpu.node_id)
        if about and each.begins_at and each.ends_at and (found := week.bar(each.begins_at, each.ends_at)):
            yield Bar(found[0], 0, found[1], HIGH, each.said, None)


def _reserved(week: Week, gpu: Gpu, reservations: Iterable[Reservation]) -> Iterator[Bar]:
    here = [
        (begins, ends, each)
        for each in reservations
        if any(card.gpu_id == gpu.pk for card in each.cards.all())
        for begins, ends in each.spans
    ]
    placed: list[tuple[datetime, datetime, float, float]] = []
    for begins, ends, each in sorted(here, key=lambda row: (row[0], row[2].pk)):
        found = week.bar(begins, ends)
        if found is None:
            continue
        size = gpu.most if each.gpu_memory is None else each.gpu_memory
        high = HIGH * min(1.0, size / max(1, gpu.most))
        y = _lowest(high, [(low, top) for b, e, low, top in placed if b < ends and e > begins])
        placed.append((begins, ends, y, y + high))
        span = f"{begins.astimezone(week.zone):%a %H:%M} to {ends.astimezone(week.zone):%a %H:%M}"
        yield Bar(found[0], round(y, 2), found[1], round(high, 2), f"{each.holder}, {format_size(size)}, {span}",
                  each.pk % COLOURS)  # fmt: skip


def _lowest(high: float, taken: Iterable[tuple[float, float]]) -> float:
    """The first place where it fits beside those at the same time."""
    at = 0.0
    for low, top in sorted(taken):
        if low - at >= high:
            break
        at = max(at, top)
    return min(at, HIGH - high)
