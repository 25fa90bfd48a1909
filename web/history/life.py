"""The life of a container as stretches of time in one state each, told from its events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from web.models import AllocationEvent, Container, State

Kind = AllocationEvent.Kind
TURNS = (Kind.STARTED, Kind.SUSPENDED, Kind.RESUMED, Kind.PAUSED, Kind.UNPAUSED, Kind.ENDED, Kind.KILLED)


@dataclass(frozen=True, slots=True)
class Stretch:
    state: State
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def stretches(container: Container) -> list[Stretch]:
    """From its launch to its end, or to now."""
    turns = container.events.filter(kind__in=TURNS).order_by("at", "id").values_list("at", "kind")
    return _told(container.created_at, container.finished_at or timezone.now(), turns)


def _told(start: datetime, end: datetime, turns: Iterable[tuple[datetime, str]]) -> list[Stretch]:
    told: list[Stretch] = []
    since, started, paused, waiting = start, False, False, False
    for at, kind in turns:
        if at >= end:
            break
        before = _state(started, paused, waiting)
        match kind:
            case Kind.STARTED:
                started = True
            case Kind.SUSPENDED | Kind.RESUMED:
                started, waiting = True, kind == Kind.SUSPENDED
            case Kind.PAUSED | Kind.UNPAUSED:
                started, paused = True, kind == Kind.PAUSED
            case _:
                continue
        if _state(started, paused, waiting) != before and at > since:
            told.append(Stretch(before, since, at))
            since = at
    if end > since:
        told.append(Stretch(_state(started, paused, waiting), since, end))
    return told


def _state(started: bool, paused: bool, waiting: bool) -> State:
    if not started:
        return State.CREATED
    return State.PAUSED if paused else State.SUSPENDED if waiting else State.RUNNING
