"""Who held what, at what time: the samples, as columns for charts.

Sums are left to the database: a day of 200 containers is some 300,000 rows, and a chart has a few hundred points.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Avg, BigIntegerField, CharField, F, FloatField, Func, Max, Min, Q, QuerySet, Sum
from django.db.models.functions import Cast
from django.utils import timezone

from web.models import AllocationEvent, Container, Gpu, UsageSample, large
from web.times import seconds

MINUTE, HOUR, DAY = 60, 3600, 86400
Span = UsageSample.Span
WRITTEN_WITHIN = timedelta(seconds=3)  # after the second that a sample is of, also where that look came late


class Epoch(Func):
    """A time as whole seconds since the epoch, computed where the rows are."""

    output_field = BigIntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(
            compiler, connection, template="CAST(strftime('%%%%s', %(expressions)s) AS INTEGER)", **context
        )

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="EXTRACT(EPOCH FROM %(expressions)s)::BIGINT", **context)


def samples_within(start: datetime, end: datetime, **of: Any) -> QuerySet[UsageSample]:
    """The samples of that time, each second of it once, as finely as makes sense for its length.

    Before these begin (for how long which are kept is a setting) coarser ones, and where they end finer ones.
    """
    samples = UsageSample.objects.filter(at__gte=start, at__lt=end, **of).order_by("at")
    length = (end - start).total_seconds()
    wanted = Span.SECOND if length <= 2 * HOUR else Span.MINUTE if length <= 8 * DAY else Span.HOUR
    chosen, begin = Q(pk=None), start
    for span, finer in ((Span.HOUR, Span.MINUTE), (Span.MINUTE, Span.SECOND), (Span.SECOND, None)):
        these = samples.filter(span=span, at__gte=begin)
        if finer and span > wanted and (first := _edge(samples.filter(span=finer, at__gte=begin))):
            these = these.filter(at__lt=first)
        if last := _edge(these.reverse()):
            chosen |= Q(span=span, at__gte=begin, at__lte=last)
            begin = last + timedelta(seconds=int(span))
    return samples.filter(chosen).order_by()


def _edge(samples: QuerySet[UsageSample]) -> datetime | None:
    return samples.values_list("at", flat=True).first()


def card(gpu: Gpu, length: float = HOUR, points: int = 240) -> dict[str, Any]:
    """The whole card over the last `length` seconds: {"times", "used", "utilisation"}, None where nothing is known."""
    end = timezone.now()
    step = max(1, int(length / points))
    rows = (
        samples_within(end - timedelta(seconds=length), end, gpu=gpu, container=None)
        .annotate(bucket=Epoch("at") / step * step)
        .values("bucket")
        .annotate(used=Avg("used"), busy=Avg("utilisation"))
        .order_by("bucket")
    )
    found = {row["bucket"]: (row["used"], row["busy"]) for row in rows}
    times = _grid(end - timedelta(seconds=length), end, step)
    used, busy = zip(*(found.get(time, (None, None)) for time in times), strict=True)
    return {"times": times, "used": [None if u is None else int(u) for u in used], "utilisation": list(busy)}


def holders(gpu: Gpu, start: datetime, end: datetime, points: int = 288) -> dict[str, Any]:
    """Who held how much of a GPU: {"times", "total", "containers": [{…, values}]}, in bytes.

    Each point is one sample, as it was at that time, and not a mean: so only those rows are read, by the index, that
    are shown. Containers come in order of their creation, as they stand in the live bar; of each its id, name, owner,
    namespace and colour are given.
    """
    step = max(MINUTE, int((end - start).total_seconds() / points) // MINUTE * MINUTE)
    times = _grid(start, end, step)
    place = {time: index for index, time in enumerate(times)}
    values: dict[str, list[int]] = defaultdict(lambda: [0] * len(times))
    for container, second, used in _at_points(gpu, times, step):
        if (index := place.get(second // step * step)) is not None:
            values[container][index] = int(used)
    rows = {UUID(key): row for key, row in values.items()}
    known = Container.objects.filter(pk__in=rows).select_related("owner").defer(*large()).order_by("created_at")
    return {
        "times": times,
        "total": gpu.total,
        "containers": [_described(container) | {"values": rows[container.pk]} for container in known],
    }


def _at_points(gpu: Gpu, times: list[int], step: int) -> Iterator[tuple[str, int, float]]:
    """(container, second, bytes) at each of these times; after the last whole minute, at the first look of each step,
    and before the first minute that is kept by the means of hours.

    Ids and times come as the database has them: 60,000 of each are not worth an object.
    """
    of_card = UsageSample.objects.filter(gpu=gpu).order_by().annotate(second=Epoch("at"))
    samples = of_card.filter(container__isnull=False).annotate(key=Cast("container_id", CharField()))
    points = [datetime.fromtimestamp(time, UTC) for time in times]
    kept = of_card.filter(span=Span.MINUTE).aggregate(first=Min("at"))["first"]
    if kept is None or points[0] < kept:
        before = [time for time, point in zip(times, points, strict=True) if kept is None or point < kept]
        yield from _hours(samples, before)
    minutes = samples.filter(span=Span.MINUTE, at__in=points)
    yield from minutes.values_list("key", "second", "used").iterator(chunk_size=10_000)
    last = of_card.filter(span=Span.MINUTE, at__gte=points[0]).aggregate(last=Max("at"))["last"]
    later = next((point for point in points if last is None or point > last), None)
    if later is not None:
        newer = of_card.filter(span=Span.SECOND, at__gte=later).values(bucket=F("second") / step)
        looks = [row["first"] for row in newer.annotate(first=Min("at"))]
        yield from samples.filter(span=Span.SECOND, at__in=looks).values_list("key", "second", "used")


def _hours(samples: QuerySet[Any], times: list[int]) -> Iterator[tuple[str, int, float]]:
    """What was held over the hour of each of these times."""
    of_hour: dict[int, list[int]] = defaultdict(list)
    for time in times:
        of_hour[time // HOUR * HOUR].append(time)
    hours = [datetime.fromtimestamp(hour, UTC) for hour in of_hour]
    for key, second, used in samples.filter(span=Span.HOUR, at__in=hours).values_list("key", "second", "used"):
        yield from ((key, time, used) for time in of_hour[second])


def moment(gpu: Gpu, at: datetime) -> dict[str, Any]:
    """Who held what at one time, as finely as is known.

    {"at", "total", "containers": [{…, used, granted, suspended, had, cpus, memory, swapped}]}. `had` is the part of the
    time that it computed, 0 to 1, `cpus` processors that it kept busy, `memory` bytes of host RAM; None: not known.
    `swapped`: bytes of its VRAM in host memory.
    """
    out = _out(gpu, at)
    for span in (Span.SECOND, Span.MINUTE, Span.HOUR):
        within = timedelta(seconds=2 * int(span)) + WRITTEN_WITHIN
        near = UsageSample.objects.filter(gpu=gpu, span=span, at__lte=at, at__gt=at - within)
        last = near.aggregate(last=Max("at"))["last"]  # the card has one, too: that nobody was there is known then
        if last is not None:
            theirs = near.filter(at=last, container__isnull=False)
            samples = theirs.select_related("container__owner").defer(*large("container__"))
            rows = [
                _described(sample.container)
                | {"used": sample.used, "granted": sample.granted, "suspended": sample.suspended > 0}
                | {"had": None if sample.had is None else min(1.0, sample.had / sample.span)}
                | {"cpus": sample.cpus_used, "memory": sample.memory_used}
                | {"swapped": out.get(sample.container_id, 0)}
                for sample in samples.order_by("container__created_at")
                if sample.container is not None
            ]
            return {"at": seconds(last), "total": gpu.total, "containers": rows}
    return {"at": at.timestamp(), "total": gpu.total, "containers": []}


def _out(gpu: Gpu, at: datetime) -> dict[UUID | None, int]:
    """Container → bytes that went from this GPU to host memory and had not come back; of those that lived then."""
    kinds = (AllocationEvent.Kind.SWAPPED_OUT, AllocationEvent.Kind.SWAPPED_IN)
    moves = AllocationEvent.objects.filter(gpu=gpu, kind__in=kinds, at__lte=at, container__started_at__lte=at)
    living = moves.filter(Q(container__finished_at__isnull=True) | Q(container__finished_at__gt=at))
    last = {pk: (kind, size) for pk, kind, size in living.order_by("id").values_list("container_id", "kind", "bytes")}
    return {pk: size for pk, (kind, size) in last.items() if kind == AllocationEvent.Kind.SWAPPED_OUT}


def container(made: Container, points: int = 300) -> dict[str, Any]:
    """One container over its life: {"times", "used", "granted", "had", "due", "cpus", "memory", "quota"}.

    `used` and `granted` are bytes on all its GPUs together; `had` and `due` what it computed and what was its by
    weight, per cent of its GPUs' time; `cpus` processors that it kept busy, `memory` bytes of host RAM. None where that
    is not known.
    """
    start = made.started_at or made.created_at
    end = made.finished_at or timezone.now()
    step = max(1, int((end - start).total_seconds() / points))
    per_time = (
        samples_within(start - timedelta(seconds=step), end + timedelta(seconds=1), container=made)
        .annotate(bucket=Epoch("at") / step * step)
        .values("bucket", "gpu")
        .annotate(used=Avg("used"), granted=Avg("granted"), had=_part("had"), due=_part("due"),
                  cpus=Avg("cpus_used"), memory=Avg("memory_used"))
    )  # fmt: skip
    at: dict[int, list[Any]] = defaultdict(list)  # the GPUs' figures
    for row in per_time:
        at[row["bucket"]].append(row)
    times = sorted(at)

    def mean(name: str, time: int) -> float | None:
        known = [row[name] for row in at[time] if row[name] is not None]
        return sum(known) / len(known) if known else None

    quota = made.claims.aggregate(total=Sum(F("quota")))["total"]
    return {
        "times": times,
        "used": [int(sum(row["used"] for row in at[time])) for time in times],
        "granted": [int(sum(row["granted"] for row in at[time])) for time in times],
        "had": [mean("had", time) for time in times],
        "due": [mean("due", time) for time in times],
        "cpus": [mean("cpus", time) for time in times],
        "memory": [mean("memory", time) for time in times],
        "quota": quota,
    }


def _part(seconds: str) -> Any:
    """Per cent of the time of those samples in which these seconds are known."""
    known = Q(**{f"{seconds}__isnull": False})
    return 100.0 * Sum(seconds) / Sum("span", filter=known, output_field=FloatField())


def _grid(start: datetime, end: datetime, step: int) -> list[int]:
    first = int(start.timestamp()) // step * step
    return list(range(first, int(end.timestamp()) + 1, step))


def _described(made: Container) -> dict[str, Any]:
    owner = made.owner.get_username()
    return {
        "id": str(made.pk), "name": made.name, "owner": owner, "namespace": made.namespace, "colour": made.colour
    }  # fmt: skip
