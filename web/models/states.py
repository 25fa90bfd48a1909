"""The one word for where a container stands, as a function of stored facts.

It is never stored, so the two sides that write a container's record cannot disagree about it. The tables below are the
only place that knows which facts make which state: for one record (`state_of`) and for the database (`in_state`).
"""

from datetime import datetime
from typing import Any, Final, Protocol

from django.db import models
from django.db.models import Case, Q, When


class State(models.TextChoices):
    CREATED = "created"
    RUNNING = "running"
    SUSPENDED = "suspended"
    PAUSED = "paused"
    SWAPPED = "swapped"
    EXITED = "exited"
    FAILED = "failed"
    KILLED = "killed"


class Facts(Protocol):
    """What a state follows from: a container's record, or what is known of it at some time in its life."""

    @property
    def started_at(self) -> datetime | None: ...
    @property
    def swapped_at(self) -> datetime | None: ...
    @property
    def paused_at(self) -> datetime | None: ...
    @property
    def suspended_since(self) -> datetime | None: ...
    @property
    def kill_requested_at(self) -> datetime | None: ...
    @property
    def finished_at(self) -> datetime | None: ...
    @property
    def exit_code(self) -> int | None: ...


GIVEN: Final = object()  # whatever it is
Rule = tuple[str, Any, State]  # if this fact is so, this is the state; the first that holds decides

_LIVE: tuple[Rule, ...] = (
    ("started_at", None, State.CREATED),
    ("swapped_at", GIVEN, State.SWAPPED),
    ("paused_at", GIVEN, State.PAUSED),
    ("suspended_since", GIVEN, State.SUSPENDED),
)
_ENDED: tuple[Rule, ...] = (
    ("kill_requested_at", GIVEN, State.KILLED),
    ("exit_code", 0, State.EXITED),
)
ENDED: Final = frozenset({State.FAILED, *(rule[2] for rule in _ENDED)})


def state_of(facts: Facts) -> State:
    rules, otherwise = (_LIVE, State.RUNNING) if facts.finished_at is None else (_ENDED, State.FAILED)
    for name, wanted, state in rules:
        value = getattr(facts, name)
        if (value is not None) if wanted is GIVEN else value == wanted:
            return state
    return otherwise


def waiting_since(facts: Facts) -> datetime | None:
    """Since when a call of it waits: of all those that wait, so also of one that is paused meanwhile."""
    return facts.suspended_since if facts.finished_at is None else None


def in_state(state: State) -> Q:
    """The same as a condition on containers. Written out in positive facts, for which there are indexes."""
    live = state not in ENDED
    condition = Q(finished_at__isnull=live)
    for name, wanted, decided in _LIVE if live else _ENDED:
        holds = Q(**{f"{name}__isnull": False}) if wanted is GIVEN else Q(**{name: wanted})
        if decided == state:
            return condition & holds
        if wanted is GIVEN or wanted is None:
            condition &= Q(**{f"{name}__isnull": wanted is GIVEN})
        else:
            condition &= Q(**{f"{name}__isnull": True}) | ~holds
    return condition


def place_of_state() -> Case:
    """Which of the states it is, counted from 0: for the database to sort by, as the states follow in a life."""
    return Case(*(When(in_state(state), then=place) for place, state in enumerate(State)))


LOST = "Lost with its node."  # why what a node held has ended that was removed by force
# Nothing of it is in host memory.
NOT_SWAPPED: dict[str, Any] = {
    "swapped_at": None,
    "swapped": 0,
    "gave_way": "",
    "gave_way_to": "",
    "not_restored": "",
    "card_move": {},
}

# Of a container that has ended, whoever tells that: it stands nowhere any more, waits for nothing, and uses nothing.
NOT_STANDING: dict[str, Any] = {"paused_at": None, "swap": "", "cannot_move": "", "no_turns": "", **NOT_SWAPPED}
NOT_WAITING: dict[str, Any] = {
    "queue_position": None, "queue_bytes": 0, "queue_reason": "", "expected_at": None, "expected_by": "",
}  # fmt: skip
NOTHING_USED: dict[str, Any] = {"cpus_used": None, "memory_used": None}  # of the host

# Of a claim whose container has ended.
NOTHING_HELD: dict[str, Any] = {
    "used": 0, "granted": 0, "overhead": 0, "unexplained": 0, "waiting": 0, "processes": [], "utilisation": None,
    "had_lately": None, "due_lately": None, "held_back_lately": None,
}  # fmt: skip
