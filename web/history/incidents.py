"""What went wrong in a time, on all cards: ends, kills, waits, moves, errors of cards, restarts, attention.

Each incident is what some record says already; nothing is stored for this.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import Q

from web.history.spans import STANDING, Waited, spans
from web.models import AllocationEvent, Container, Episode, Node, State, large
from web.models.states import ENDED
from web.sizes import format_size
from web.times import span

MOST = 500  # of each kind, the newest: a page shows no more
LONG_WAIT = timedelta(minutes=1)


class Kind(StrEnum):
    FAILED = "failed"
    KILLED = "killed"
    EXITED = "exited"
    WAITED = "waited"
    MOVED = "moved"
    CARD = "card"
    RESTARTED = "restarted"
    ATTENTION = "attention"


LABELS: dict[Kind, str] = {
    Kind.FAILED: "Failed",
    Kind.KILLED: "Killed",
    Kind.EXITED: "Ended well",
    Kind.WAITED: "Waited",
    Kind.MOVED: "Moved",
    Kind.CARD: "Card",
    Kind.RESTARTED: "Restart",
    Kind.ATTENTION: "Attention",
}
OF_CARDS = {"xid", "ecc", "hot", "gpu_gone", "drained"}
OF_RESTARTS = {"scheduler_away", "engine_away", "database_away"}
SHOWN_OTHERWISE = {"waiting", "swapped_waiting", "announced"}  # as waits; and nothing went wrong yet
_Event = AllocationEvent.Kind
MOVES = {
    _Event.SWAPPED_OUT: "To host memory: {size}.",
    _Event.SWAPPED_IN: "Back on the card: {size}.",
    _Event.NOT_MOVED: "Did not move to host memory.",
    _Event.NOT_RESTORED: "Could not be brought back from host memory.",
}


@dataclass(frozen=True, slots=True)
class Incident:
    """`until`: the end of what lasted; None for one moment, or while it lasts."""

    at: datetime
    kind: Kind
    text: str
    person: str = ""
    container: Container | None = None
    until: datetime | None = None
    name: str = ""  # of a container that has no record any more

    @property
    def label(self) -> str:
        return LABELS[self.kind]


def incidents(start: datetime, end: datetime, kind: str = "", person: str = "", gpu: str = "") -> list[Incident]:
    """In [start, end), the newest first. `kind`: empty for all but good ends; `person` a user name, `gpu` a UUID."""
    chosen = Q()
    if person:
        chosen &= Q(owner__username=person)
    if gpu:
        chosen &= Q(claims__gpu__uuid=gpu)
    found: list[Incident] = []
    if not kind or kind in (Kind.FAILED, Kind.KILLED, Kind.EXITED):
        found += _ends(chosen, start, end)
    if not kind or kind == Kind.WAITED:
        found += _waits(chosen, start, end)
    if not kind or kind == Kind.MOVED:
        found += _moves(chosen, start, end)
    if not kind or kind == Kind.RESTARTED:
        found += _restarts(chosen, start, end, everything=not person and not gpu)
    found += _episodes(start, end, person, gpu)
    wanted = {kind} if kind else set(Kind) - {Kind.EXITED}
    return sorted((each for each in found if each.kind in wanted), key=lambda each: each.at, reverse=True)


def _containers(chosen: Q) -> Iterator[Container]:
    yield from Container.objects.filter(chosen).select_related("owner").defer(*large()).distinct()


def _ends(chosen: Q, start: datetime, end: datetime) -> Iterator[Incident]:
    ended = chosen & Q(finished_at__gte=start, finished_at__lt=end)
    for container in (
        Container.objects.filter(ended)
        .select_related("owner")
        .defer(*large())
        .order_by("-finished_at")
        .distinct()[: len(ENDED) * MOST]
    ):
        assert container.finished_at is not None
        kind = {State.KILLED: Kind.KILLED, State.EXITED: Kind.EXITED}.get(container.state, Kind.FAILED)
        yield _of(container, container.finished_at, kind, end_of(container))


def end_of(container: Container) -> str:
    """How it ended, in words: exit code, how long it ran, why."""
    text = "Did not start."
    if container.started_at is not None and container.finished_at is not None:
        text = f"Ran {span((container.finished_at - container.started_at).total_seconds())}."
    if container.exit_code is not None:
        text = f"Exit code {container.exit_code}. {text}"
    return f"{text} {container.reason}".strip()


def _waits(chosen: Q, start: datetime, end: datetime) -> Iterator[Incident]:
    waits = [
        (pk, part)
        for pk, parts in spans(Q(pk__in=Container.objects.filter(chosen).values("pk")), start, end, STANDING)
        for part in parts
        if isinstance(part, Waited) and part.end - part.start >= LONG_WAIT
    ]
    waits = sorted(waits, key=lambda wait: wait[1].start)[-MOST:]
    known = {each.pk: each for each in _containers(Q(pk__in={pk for pk, _ in waits}))}
    for pk, wait in waits:
        if pk not in known:  # forgotten just now
            continue
        length = span((wait.end - wait.start).total_seconds())
        if wait.end < end:
            yield _of(known[pk], wait.start, Kind.WAITED, f"Waited {length} for memory.", wait.end)
        else:
            yield _of(known[pk], wait.start, Kind.WAITED, f"Waits for memory, {length} so far.")


def _moves(chosen: Q, start: datetime, end: datetime) -> Iterator[Incident]:
    moved = AllocationEvent.objects.filter(
        kind__in=MOVES, at__gte=start, at__lt=end, container__in=Container.objects.filter(chosen).order_by()
    )
    rows = list(moved.order_by("-at")[:MOST])
    known = {each.pk: each for each in _containers(Q(pk__in={row.container_id for row in rows}))}
    for row in rows:
        if row.container_id not in known:
            continue
        text = MOVES[_Event(row.kind)].format(size=format_size(row.bytes))
        yield _of(known[row.container_id], row.at, Kind.MOVED, f"{text} {row.detail}".strip())


def _restarts(chosen: Q, start: datetime, end: datetime, *, everything: bool) -> Iterator[Incident]:
    """Containers that a Swarm began again; of the whole appliance its schedulers, too: of each the last start."""
    again = chosen & ~Q(run_of=None) & Q(created_at__gte=start, created_at__lt=end)
    for container in list(_containers(again))[:MOST]:
        yield _of(container, container.created_at, Kind.RESTARTED, "Begun again.")
    if everything:
        for name, at in Node.objects.filter(started_at__gte=start, started_at__lt=end).values_list(
            "name", "started_at"
        ):
            assert at is not None
            yield Incident(at, Kind.RESTARTED, f'The scheduler of "{name}" started.')


def _episodes(start: datetime, end: datetime, person: str, gpu: str) -> Iterator[Incident]:
    """Attention that came and went. A card out of service is one incident; who is on it matters to each of them."""
    found = Episode.objects.filter(Q(ended_at=None) | Q(ended_at__gte=start), began_at__lt=end)
    found = found.filter(person=person) if person else found.exclude(Q(kind="drained") & ~Q(container_id=""))
    if gpu:
        holders = Container.objects.filter(claims__gpu__uuid=gpu, created_at__lt=end).order_by()
        there = {str(pk) for pk in holders.filter(Q(finished_at=None) | Q(finished_at__gte=start)).values_list(
            "pk", flat=True
        )}  # fmt: skip
        found = found.filter(Q(gpu=gpu) | Q(container_id__in=there))
    rows = list(found.exclude(kind__in=SHOWN_OTHERWISE).order_by("-began_at")[:MOST])
    known = {str(each.pk): each for each in _containers(Q(pk__in={row.container_id for row in rows} - {""}))}
    for row in rows:
        kind = Kind.CARD if row.kind in OF_CARDS else Kind.RESTARTED if row.kind in OF_RESTARTS else Kind.ATTENTION
        yield Incident(
            row.began_at, kind, row.message, row.person, known.get(row.container_id), row.ended_at, row.container
        )


def _of(container: Container, at: datetime, kind: Kind, text: str, until: datetime | None = None) -> Incident:
    return Incident(at, kind, text, container.owner.get_username(), container, until)
