"""The life of a container as stretches of time in one state each, put together from the spans that reports add up."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby

from django.db.models import Q
from django.utils import timezone

from web.history.spans import STANDING, Paused, Span, Swapped, Waited, spans
from web.models import Container, State
from web.models.states import state_of


@dataclass(frozen=True, slots=True)
class Stretch:
    state: State
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def stretches(container: Container) -> list[Stretch]:
    """From its launch to its end, or to now: without gaps, and no two neighbours in one state."""
    start, end = container.created_at, container.finished_at or timezone.now()
    found = spans(Q(pk=container.pk), start, end, STANDING)
    known = list(chain.from_iterable(parts for _, parts in found))
    return list(_joined(_pieces(start, end, container.started_at, known)))


_FACTS = {Paused: "paused_at", Waited: "suspended_since", Swapped: "swapped_at"}


@dataclass(slots=True)
class _Moment:
    """What its record said of it at one time; what has ended says nothing any more."""

    started_at: datetime | None = None
    paused_at: datetime | None = None
    swapped_at: datetime | None = None
    suspended_since: datetime | None = None
    kill_requested_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None


def _pieces(start: datetime, end: datetime, started_at: datetime | None, known: list[Span]) -> Iterator[Stretch]:
    """The time from `start` to `end`, cut wherever anything begins or ends."""
    changes: list[tuple[datetime, str, datetime | None]] = []  # when, which fact, and what it is from then on
    if started_at is not None:
        changes.append((max(start, started_at), "started_at", started_at))
    for span in known:
        if fact := _FACTS.get(type(span)):
            assert isinstance(span, Paused | Waited | Swapped)
            changes += [(span.start, fact, span.start), (span.end, fact, None)]
    # What ends goes first: the next of its kind may begin at the same time.
    changes.sort(key=lambda change: (change[0], change[2] is not None))
    facts = _Moment()
    since = start
    for at, fact, value in changes:
        if since < min(at, end):
            yield Stretch(state_of(facts), since, min(at, end))
            since = min(at, end)
        setattr(facts, fact, value)
    if since < end:
        yield Stretch(state_of(facts), since, end)


def _joined(pieces: Iterable[Stretch]) -> Iterator[Stretch]:
    for state, run in groupby(pieces, key=lambda piece: piece.state):
        parts = list(run)
        yield Stretch(state, parts[0].start, parts[-1].end)
