"""Whom maintenance or a reservation of others concerns: containers that may still run when it begins.

Owners hear of it at the launch, a day before and an hour before, once each: by an event of the container, whichever
process looks. A reservation concerns those on its GPUs that have no room beside it.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import DatabaseError, transaction
from django.utils import timezone

from web import audit
from web.models import AllocationEvent, Announcement, Command, Container, Gpu, Reservation, large
from web.models.records import secrets
from web.services.booked.announcements import GRACE
from web.services.booked.reservations import people_of
from web.sizes import format_size
from web.spec import quotas

log = logging.getLogger(__name__)

LEADS = ((timedelta(hours=1), "In an hour: "), (timedelta(days=1), "In a day: "))  # the shortest first
NOTIFIED = AllocationEvent.Kind.NOTIFIED
ENDED = f"ended, with {GRACE:.0f} s to save its work"
MOVED = "its GPU memory is moved to host memory until there is room"
BECOMES = {
    Announcement.Then.STAY: "Containers keep running unless the host stops.",
    Announcement.Then.MOVE: "Its GPU memory is then moved to host memory and it is paused.",
    Announcement.Then.END: f"It is then {ENDED}.",
}
IN_THE_WAY = {
    Reservation.Short.SHORT: f"If it does not fit then, {MOVED}.",
    Reservation.Short.END: f"If it does not fit then, {MOVED}; if it cannot be moved, it is {ENDED}.",
}


@dataclass(frozen=True, slots=True)
class About:
    """A container: its quota on each GPU (by key), and by when it has ended at the latest, if it has a time limit."""

    key: UUID | None
    node: int | None
    gpus: Mapping[int, int]
    ends: datetime | None
    owner: str


Others = Mapping[int, list[About]]  # GPU → those on it


@dataclass(frozen=True, slots=True)
class Coming:
    """Something that is to begin. `node`, `gpu`: keys; both None: everywhere. `room`: bytes that a reservation leaves
    to others than `people`; None: it is maintenance."""

    begins: datetime
    said: str
    node: int | None = None
    gpu: int | None = None
    room: int | None = None
    people: frozenset[str] = field(default=frozenset())

    def concerns(self, each: About, others: Others) -> bool:
        if each.ends is not None and each.ends <= self.begins:
            return False
        if self.gpu is None:
            return self.node in (None, each.node)
        if self.gpu not in each.gpus or each.owner in self.people:
            return False
        if self.room is None:
            return True
        wanted = each.gpus[self.gpu]
        for other in others.get(self.gpu, ()):
            stays = other.ends is None or other.ends > self.begins
            if stays and other.key != each.key and other.owner not in self.people:
                wanted += other.gpus[self.gpu]
        return wanted > self.room


def coming(now: datetime) -> list[Coming]:
    """What has not begun yet, maintenance first."""
    return [*_announced(now), *_reserved(now)]


def ahead_of_a_launch() -> list[Coming]:
    """The same for a launch that is made, while the scheduler starts it; it stands even if the database is away now."""
    try:
        return coming(timezone.now())
    except DatabaseError as error:
        log.warning("Notices and reservations cannot be read now: %s", error)
        return []


def _announced(now: datetime) -> Iterator[Coming]:
    windows = Announcement.objects.current(now).filter(begins_at__gt=now)
    if not windows.exists():  # asked for at each launch; to read them is a question about all of two nodes
        return
    for each in windows:
        if each.begins_at is not None:
            said = f"{each.said.rstrip('.')}. {BECOMES[Announcement.Then(each.then)]}"
            yield Coming(each.begins_at, said, each.node_id, each.gpu_id)


def _reserved(now: datetime) -> Iterator[Coming]:
    """The next time of each reservation, on each of its GPUs."""
    found = list(Reservation.objects.open(now).whole())
    spans = {each.pk: each.spans for each in found}
    for each in found:
        begins, ends = next((span for span in spans[each.pk] if span[0] > now), (now, now))
        if begins == now or not (people := people_of(each)):
            continue
        for card in each.cards.all():
            together = sum(
                card.gpu.most if other.gpu_memory is None else other.gpu_memory
                for other in found
                if any(mine.gpu_id == card.gpu_id for mine in other.cards.all())
                and people_of(other)
                and any(start <= begins < end for start, end in spans[other.pk])
            )
            size = card.gpu.most if each.gpu_memory is None else each.gpu_memory
            becomes = IN_THE_WAY[Reservation.Short(each.if_short)]
            said = (
                f"{format_size(size)} of GPU {card.gpu.index} of {card.gpu.node.name} is reserved for {each.holder} "
                f"from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC. {becomes}"
            )
            yield Coming(begins, said, None, card.gpu_id, card.gpu.most - together, people)


def said_to(container: Container, ahead: Sequence[Coming] | None = None) -> str:
    """What the person who launches it sees: sentences, or nothing. `ahead`: what is coming, where it is known."""
    now = timezone.now()
    return _said(now, _about(container, now), coming(now) if ahead is None else ahead)


def said_before(forecast: Command) -> str:
    """The same of a launch that somebody has asked about."""
    asked = forecast.arguments
    named = asked["gpus"] if isinstance(asked.get("gpus"), list) else []
    size = quotas.asked(asked.get("gpu_memory"))
    gpus = dict.fromkeys(Gpu.objects.filter(uuid__in=named).values_list("pk", flat=True), size)
    now, limit = timezone.now(), asked.get("ttl_seconds")
    ends = None if limit is None else now + timedelta(seconds=limit)
    return _said(now, About(None, forecast.node_id, gpus, ends, str(asked.get("owner", ""))), coming(now))


def _said(now: datetime, each: About, ahead: Sequence[Coming]) -> str:
    others = _others(_live(now)) if ahead else {}
    return " ".join(dict.fromkeys(thing.said for thing in ahead if thing.concerns(each, others)))


def _live(now: datetime) -> list[About]:
    live = Container.objects.live().exclude(started_at=None).select_related("owner")
    return [_about(each, now) for each in live.defer(*large(), *secrets("owner")).prefetch_related("claims")]


def _about(container: Container, now: datetime) -> About:
    gpus = {claim.gpu_id: claim.quota for claim in container.claims.all()}
    limit = container.ttl_seconds
    ends = None if limit is None else container.ends_by or now + timedelta(seconds=limit)
    return About(container.pk, container.node_id, gpus, ends, container.owner.get_username())


def _others(live: Iterable[About]) -> Others:
    found = defaultdict(list)
    for each in live:
        for gpu in each.gpus:
            found[gpu].append(each)
    return found


def tell(now: datetime) -> None:
    """Writes an event for each live container about each thing that concerns it and that it was not notified of yet."""
    ahead = coming(now)
    if not ahead:
        return
    live = _live(now)
    others, notified = _others(live), defaultdict[UUID | None, set[str]](set)
    before = AllocationEvent.objects.filter(container__finished_at=None, kind=NOTIFIED)
    for pk, detail in before.values_list("container_id", "detail"):
        notified[pk].add(detail)
    with transaction.atomic():
        audit.append([
            AllocationEvent(at=now, kind=NOTIFIED, container_id=each.key or "", detail=text)
            for each in live for text in _texts(each, ahead, others, now) if text not in notified[each.key]
        ])  # fmt: skip


def _texts(each: About, ahead: Iterable[Coming], others: Others, now: datetime) -> Iterator[str]:
    for thing in ahead:
        if thing.concerns(each, others):
            lead = next((words for before, words in LEADS if thing.begins - now <= before), "")
            yield f"{lead}{thing.said}"[:500]
