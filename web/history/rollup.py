"""Samples get coarser with age: a second each for an hour, a minute each for a week, an hour each for ever.

A minute is made once all its seconds are over, and an hour once all its minutes are; only then may what it was made
of go. Running it twice, or after a long pause, changes nothing.

What somebody held is a mean over all the times in that minute at which anybody looked: who held 4 GiB for 15 seconds
held 1 GiB for that minute. Of an hour it is the mean over its sixty minutes, also those in which nobody looked: two
minutes after the first start would count as a whole hour otherwise. So what all held together is never more than the
card has, and `used` × `span` is what the fairness page adds up.

What people had and were due (`UsageHour`) is kept by the hour for a month, then added up to days of UTC.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Avg, Count, F, Max, Min, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import TruncHour, TruncMinute

from web.inserting import insert
from web.models import Gpu, UsageHour, UsageSample

Span = UsageSample.Span
Samples = QuerySet[UsageSample]
_STEPS = ((Span.SECOND, Span.MINUTE, TruncMinute), (Span.MINUTE, Span.HOUR, TruncHour))
SECONDS_KEPT, MINUTES_KEPT = 3600, 7 * 86400  # seconds that samples of a second and of a minute stay; hours stay
USAGE_HOURS_KEPT = 31 * 24
_CHUNK = timedelta(hours=6)  # what one transaction takes on, so that writers never wait long


def roll_up(now: datetime, node: int | None = None) -> int:
    """Sums samples up to complete minutes and hours; deletes what is past its retention. How many rows it made.

    Of all cards, or of a node's: each scheduler sees to its own, so no two make the same, and one that was away for
    long catches up.
    """
    gpus = Gpu.objects.order_by() if node is None else Gpu.objects.filter(node=node).order_by()
    mine = UsageSample.objects.filter(gpu__in=list(gpus.values_list("pk", flat=True)))
    made = rolled = 0
    for fine, coarse, trunc in _STEPS:
        length = timedelta(seconds=int(coarse))
        end = _floor(now, coarse)
        start, rolled = _first_missing(gpus, fine, coarse), 0
        while start is not None and start < end:
            stop = min(_floor(start, coarse) + max(_CHUNK, length), end)
            rolled += _roll(mine, fine, coarse, trunc, start, stop)
            start = stop
        made += rolled
        _forget(mine, fine, now, end)
    if rolled:  # an hour is over
        _add_up_days(gpus, int(now.timestamp()) // 3600)
    return made


def _add_up_days(gpus: QuerySet[Gpu], hour: int) -> None:
    """Each day's hours of usage become one row, at its first hour. A day is looked at for a month after it may go."""
    end = (hour - USAGE_HOURS_KEPT) // 24 * 24
    old = UsageHour.objects.filter(gpu__in=list(gpus.values_list("pk", flat=True)), hour__lt=end)
    hours = old.filter(hour__gte=end - USAGE_HOURS_KEPT).annotate(of_day=F("hour") % 24).exclude(of_day=0)
    with transaction.atomic():
        days: dict[tuple[int, str, int], list[UsageHour]] = {}
        for row in hours:
            days.setdefault((row.gpu_id, row.person, row.hour // 24 * 24), []).append(row)
        for (gpu, person, day), its in days.items():
            had, due = sum(row.had for row in its), sum(row.due for row in its)
            of_day = UsageHour.objects.filter(gpu=gpu, person=person, hour=day)
            if not of_day.update(had=F("had") + had, due=F("due") + due):
                UsageHour.objects.create(gpu_id=gpu, person=person, hour=day, had=had, due=due)
        UsageHour.objects.filter(pk__in=[row.pk for its in days.values() for row in its]).delete()


def _first_missing(gpus: QuerySet[Gpu], fine: Span, coarse: Span) -> datetime | None:
    """Where the next coarse span begins that has not been made; None without anything to make it of."""
    last = _edge(gpus, coarse, "-at", Max)
    if last is not None:
        return last + timedelta(seconds=int(coarse))
    first = _edge(gpus, fine, "at", Min)
    return None if first is None else _floor(first, coarse)


def _edge(gpus: QuerySet[Gpu], span: Span, order: str, of_all: type[Max] | type[Min]) -> datetime | None:
    """The first or the last such sample of these GPUs. By one step into the index for each: there may be millions."""
    of_one = UsageSample.objects.filter(gpu=OuterRef("pk"), span=span).order_by(order).values("at")[:1]
    found: datetime | None = gpus.annotate(edge=Subquery(of_one)).aggregate(found=of_all("edge"))["found"]
    return found


def _roll(
    mine: Samples, fine: Span, coarse: Span, trunc: type[TruncMinute] | type[TruncHour], start: datetime, stop: datetime
) -> int:
    rows = list(
        mine.filter(span=fine, at__gte=start, at__lt=stop)
        .order_by()
        .annotate(bucket=trunc("at"))
        .values("bucket", "gpu_id", "container_id")
        .annotate(
            held=Sum("used"), most=Max("peak"), lease=Sum("granted"), busy=Avg("utilisation"), waited=Sum("suspended"),
            had=Sum("had"), due=Sum("due"), held_back=Sum("held_back"),
            cpus=Avg("cpus_used"), memory=Avg("memory_used"), there=Count("pk"),
        )
    )  # fmt: skip
    looks = _looks(rows, 1 if fine == Span.SECOND else int(coarse) // int(fine))
    made = [
        UsageSample(
            at=row["bucket"], span=coarse, gpu_id=row["gpu_id"], container_id=row["container_id"],
            used=round(row["held"] / times), peak=row["most"], granted=round(row["lease"] / times),
            utilisation=row["busy"], suspended=row["waited"], had=row["had"], due=row["due"],
            held_back=row["held_back"], cpus_used=row["cpus"],
            memory_used=None if row["memory"] is None else round(row["memory"]),
        )
        for row in rows
        if (times := looks[row["bucket"], row["gpu_id"]])
    ]  # fmt: skip
    with transaction.atomic():
        insert(UsageSample, made)
    return len(made)


def _looks(rows: Iterable[Mapping[str, Any]], least: int) -> dict[tuple[datetime, int], int]:
    """How often each GPU was looked at in each bucket, `least` if seldomer.

    The card itself has a sample of each look, a container only of those at which it was there.
    """
    looks: dict[tuple[datetime, int], int] = {}
    for row in rows:
        key = row["bucket"], row["gpu_id"]
        looks[key] = max(looks.get(key, least), row["there"])
    return looks


def _forget(mine: Samples, fine: Span, now: datetime, rolled_until: datetime) -> None:
    """Deletes what is older than its retention, but nothing that has not been rolled up."""
    kept = SECONDS_KEPT if fine == Span.SECOND else MINUTES_KEPT
    until = min(now - timedelta(seconds=kept), rolled_until)
    mine.filter(span=fine, at__lt=until).delete()


def _floor(at: datetime, span: Span) -> datetime:
    at = at.replace(second=0, microsecond=0)
    return at if span == Span.MINUTE else at.replace(minute=0)
