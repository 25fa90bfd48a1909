"""Whom a window of maintenance concerns: containers that may still run when it begins. Their owners are told at the
launch, a day before and an hour before, once each: by an event of the container, whichever process looks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from web import audit
from web.models import AllocationEvent, Announcement, Command, Container, Gpu, large
from web.services.booked.announcements import GRACE

LEADS = ((timedelta(hours=1), "In an hour: "), (timedelta(days=1), "In a day: "))  # the shortest first
NOTIFIED = AllocationEvent.Kind.NOTIFIED
BECOMES = {
    Announcement.Then.STAY: "Containers go on unless the host stops.",
    Announcement.Then.MOVE: "Its GPU memory is then moved to host memory and it is paused.",
    Announcement.Then.END: f"It is then ended, with {GRACE:.0f} s to save its work.",
}


@dataclass(frozen=True, slots=True)
class Coming:
    """Something that is to begin and takes memory from containers. `node`, `gpu`: keys; both None: everywhere."""

    begins: datetime
    said: str
    node: int | None = None
    gpu: int | None = None

    def concerns(self, node: int | None, gpus: Collection[int], ends: datetime | None) -> bool:
        """`ends`: by when a container has ended at the latest, if it has a time limit."""
        if ends is not None and ends <= self.begins:
            return False
        return self.gpu in gpus if self.gpu is not None else self.node in (None, node)


def coming(now: datetime) -> list[Coming]:
    """What has not begun yet, the next first."""
    windows = Announcement.objects.current(now).filter(begins_at__gt=now)
    return [
        Coming(each.begins_at, f"{each.said} {BECOMES[Announcement.Then(each.then)]}", each.node_id, each.gpu_id)
        for each in windows
        if each.begins_at is not None
    ]


def said_to(container: Container) -> str:
    """What a person who launches it is told: sentences, or nothing."""
    now = timezone.now()
    gpus = [claim.gpu_id for claim in container.claims.all()]
    return said_of(now, container.node_id, gpus, _ends(container, now))


def said_of(now: datetime, node: int | None, gpus: Collection[int], ends: datetime | None) -> str:
    """The same of one that is not there yet. `gpus`: their keys."""
    return " ".join(each.said for each in coming(now) if each.concerns(node, gpus, ends))


def said_before(forecast: Command) -> str:
    """The same of a launch that somebody has asked about; its time limit is not known."""
    gpus = forecast.arguments.get("gpus")
    found = Gpu.objects.filter(uuid__in=gpus).values_list("pk", flat=True) if isinstance(gpus, list) else ()
    return said_of(timezone.now(), forecast.node_id, list(found), None)


def _ends(container: Container, now: datetime) -> datetime | None:
    if container.ttl_seconds is None:
        return None
    return container.ends_by or now + timedelta(seconds=container.ttl_seconds)


def tell(now: datetime) -> None:
    """Writes an event for each live container about each thing that concerns it and that it was not told of yet."""
    ahead = coming(now)
    if not ahead:
        return
    live = Container.objects.live().exclude(started_at=None).defer(*large()).prefetch_related("claims")
    told = defaultdict[object, set[str]](set)
    for pk, detail in AllocationEvent.objects.filter(container__in=live, kind=NOTIFIED).values_list(
        "container_id", "detail"
    ):
        told[pk].add(detail)
    with transaction.atomic():
        audit.append([
            AllocationEvent(at=now, kind=NOTIFIED, container=container, detail=text)
            for container in live for text in _texts(container, ahead, now) if text not in told[container.pk]
        ])  # fmt: skip


def _texts(container: Container, ahead: Iterable[Coming], now: datetime) -> Iterator[str]:
    gpus = [claim.gpu_id for claim in container.claims.all()]
    for each in ahead:
        if each.concerns(container.node_id, gpus, _ends(container, now)):
            lead = next((words for before, words in LEADS if each.begins - now <= before), "")
            yield f"{lead}{each.said}"[:500]
