"""Allocation events as a scheduler writes them, and a second, simple-minded account of them."""

import itertools
from datetime import datetime, timedelta
from typing import Any

from web import audit
from web.models import AllocationEvent, Container, Gpu

EventKind = AllocationEvent.Kind


def append(container: Container, at: datetime, kind: str, gpu: Gpu | None = None, **fields: Any) -> AllocationEvent:
    event = AllocationEvent(container=container, at=at, kind=kind, gpu=gpu, **fields)
    audit.append(events=[event])
    return event


def recomputed(start: datetime, end: datetime) -> dict[str, int]:
    """What the reports should say, by looking at every container at every moment at which anything happens.

    Slow and without any idea in common with `web.history.spans`: between two neighbouring moments nothing changes, so
    what held at the first one held until the second.
    """
    totals = {"byte_microseconds": 0, "suspended_microseconds": 0, "rejects": 0}
    for container in Container.objects.all():
        events = list(AllocationEvent.objects.filter(container=container, at__lt=end).order_by("id"))
        for earlier, event in itertools.pairwise(events):
            event.at = max(event.at, earlier.at)  # a time before that of an earlier event counts as the same
        totals["rejects"] += sum(1 for event in events if event.kind == EventKind.REJECTED and event.at >= start)
        closed = any(event.kind == EventKind.ENDED for event in events)
        last = end if closed else min(container.finished_at or end, end)
        moments = sorted({event.at for event in events} | {start, last})
        for moment, following in itertools.pairwise(moments):
            if moment < start or following > last:
                continue
            length = (following - moment) // timedelta(microseconds=1)
            past = [event for event in events if event.at <= moment]
            totals["byte_microseconds"] += length * sum(_used(past).values())
            totals["suspended_microseconds"] += length * (_waiting(past) > 0)
    return totals


def _used(past: list[AllocationEvent]) -> dict[int, int]:
    used: dict[int, int] = {}
    for event in past:
        if event.kind == EventKind.ENDED:
            used = {}
        elif event.gpu_id is not None and event.used_after is not None:
            used[event.gpu_id] = event.used_after
    return used


def _waiting(past: list[AllocationEvent]) -> int:
    waiting = 0
    for event in past:
        if event.kind == EventKind.SUSPENDED:
            waiting = 1 if event.waited > 0 else waiting + 1
        elif event.kind == EventKind.RESUMED or (event.kind == EventKind.REJECTED and event.waited > 0):
            waiting = 0 if event.gpu_id is None else max(0, waiting - 1)
        elif event.kind == EventKind.ENDED:
            waiting = 0
    return waiting
