"""What is marked on a day's replay: who waited for memory and from when to when, and who was killed."""

from datetime import datetime
from typing import Any

from django.db.models import Q

from web.history.spans import STANDING, Waited, spans
from web.models import AllocationEvent, Container, Gpu
from web.times import seconds

MOST = 200  # of each kind, the longest waits and the last kills: beyond that a chart shows nothing


def marks(gpu: Gpu, start: datetime, end: datetime) -> list[dict[str, Any]]:
    """In the order of time: [{"kind", "id", "name", "owner", "namespace", "at", "until"}].

    `kind` is waited or killed, `until` the end of a wait; times are seconds since the epoch.
    """
    here = Q(claims__gpu=gpu)
    found = [(span.start, span.end, "waited", pk) for pk, parts in spans(here, start, end, STANDING)
             for span in parts if isinstance(span, Waited)]  # fmt: skip
    found = sorted(found, key=lambda wait: wait[0] - wait[1])[:MOST]
    killed = AllocationEvent.objects.filter(
        kind=AllocationEvent.Kind.KILLED, at__gte=start, at__lt=end, container__claims__gpu=gpu
    ).order_by("-at")
    found += [(at, at, "killed", pk) for at, pk in killed.values_list("at", "container_id").distinct()[:MOST]]
    names = Container.objects.only("name", "namespace").in_bulk({pk for *_, pk in found})
    owners = dict(Container.objects.filter(pk__in=names).values_list("pk", "owner__username"))
    return [
        {"kind": kind, "id": str(pk), "name": names[pk].name, "owner": owners[pk], "at": seconds(since)}
        | {"namespace": names[pk].namespace, "until": seconds(to) if kind == "waited" else None}
        for since, to, kind, pk in sorted(found, key=lambda mark: mark[0])
    ]
