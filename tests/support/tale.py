"""A container's life made up, with what is true of it at each second, and what a scheduler writes down about it.

Everything happens at whole seconds, so that one sample a second (which is what the scheduler takes) misses nothing.
"""

import itertools
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.support.events import EventKind
from web import audit
from web.models import AllocationEvent, Container, Gpu, State, UsageSample


@dataclass(frozen=True)
class Truth:
    """What is so from one second to the next."""

    state: State
    waits: bool
    used: tuple[int, ...]  # by GPU, in bytes


@dataclass
class Tale:
    """Tell it step by step, `rest` for some seconds in between, and `write` it down in the end.

    Each method is something that can come about at any time; where it cannot (nothing waits, it is not paused) nothing
    happens.
    """

    start: datetime
    gpus: list[Gpu]
    seconds: int = 0
    started: int | None = None
    ended: int | None = None
    paused: bool = False
    killed: bool = False
    calls: list[int] = field(default_factory=list)  # those that wait: since when
    expected: int | None = None  # since when those waited that the last scheduler left behind, until one asks again
    used: dict[int, int] = field(default_factory=dict)
    truth: list[Truth] = field(default_factory=list)
    events: list[AllocationEvent] = field(default_factory=list)

    # ---- what happens ----

    def rest(self, seconds: int) -> None:
        for _ in range(seconds):
            self.truth.append(self._now())
            self.seconds += 1

    def begin(self) -> None:
        self.started = self.seconds
        for gpu in self.gpus:
            self._tell(EventKind.STARTED, gpu)

    def granted(self, gpu: int, size: int) -> None:
        """A call that need not wait."""
        self._expect_no_more()
        self._use(EventKind.ACCEPTED, gpu, self.used.get(gpu, 0) + size)

    def freed(self, gpu: int, size: int) -> None:
        self._use(EventKind.FREED, gpu, max(0, self.used.get(gpu, 0) - size))

    def suspended(self, gpu: int, size: int) -> None:
        waited = 0.0 if self.expected is None else max(1e-3, self.seconds - self.expected)
        since, self.expected = self.expected, None
        self.calls.append(self.seconds if since is None else since)
        self._tell(EventKind.SUSPENDED, self.gpus[gpu], used_after=self.used.get(gpu, 0), waited=waited)

    def resumed(self, gpu: int, size: int) -> None:
        if self.calls:
            self._expect_no_more()
            waited = self._answered()
            self._use(EventKind.RESUMED, gpu, self.used.get(gpu, 0) + size, waited=waited)

    def rejected(self, gpu: int, size: int) -> None:
        """At once: nobody waits less for it."""
        self._tell(EventKind.REJECTED, self.gpus[gpu], used_after=self.used.get(gpu, 0))

    def waited_too_long(self, gpu: int, size: int) -> None:
        if self.calls:
            waited = self._answered()
            self._tell(EventKind.REJECTED, self.gpus[gpu], used_after=self.used.get(gpu, 0), waited=waited)

    def pause(self, gpu: int, size: int) -> None:
        if not self.paused:
            self.paused = True
            self._tell(EventKind.PAUSED)

    def unpause(self, gpu: int, size: int) -> None:
        if self.paused:
            self.paused = False
            self._tell(EventKind.UNPAUSED)

    def restart(self, gpu: int, size: int) -> None:
        """Of the scheduler: whoever waits has to ask again, and until then is taken to wait on."""
        since = [*self.calls, *([] if self.expected is None else [self.expected])]
        self.calls, self.expected = [], min(since, default=None)

    def nobody_asked_again(self, gpu: int, size: int) -> None:
        self._expect_no_more()

    def nothing_much(self, gpu: int, size: int) -> None:
        """Events that are about something else."""
        for kind in (EventKind.WARNED, EventKind.IDLE, EventKind.QUOTA, EventKind.BYPASS):
            self._tell(kind)
        self._tell(EventKind.CARD_FULL, self.gpus[gpu], used_after=self.used.get(gpu, 0))

    def end(self, *, killed: bool, seen_after: int) -> None:
        """`seen_after` seconds there is no scheduler yet to see it; its calls are recorded as rejected then."""
        self.ended, self.killed = self.seconds, killed
        if killed:
            self._tell(EventKind.KILLED)
        calls, self.calls = self.calls, []
        for since in calls:
            waited = max(1e-3, self.seconds + seen_after - since)
            self._tell(EventKind.REJECTED, self.gpus[0], used_after=self.used.get(0, 0), waited=waited, late=seen_after)
        self._tell(EventKind.ENDED)
        self.expected = None
        for gpu, used in self.used.items():
            if used:
                self._tell(EventKind.FREED, self.gpus[gpu], used_after=0, late=seen_after)
        self.used = {}

    # ---- what is known of it ----

    def at(self, seconds: float) -> datetime:
        return self.start + timedelta(seconds=seconds)

    def write(self, container: Container) -> None:
        """The record, the events and the samples."""
        now = self._now()
        record: dict[str, Any] = {
            "created_at": self.start,
            "started_at": None if self.started is None else self.at(self.started),
            "finished_at": None if self.ended is None else self.at(self.ended),
            "kill_requested_at": self.at(self.ended or 0) if self.killed else None,
            "paused_at": self.start if self.paused and self.ended is None else None,
            "suspended_since": self.start if now.waits and self.ended is None else None,
        }
        Container.objects.filter(pk=container.pk).update(**record)
        container.refresh_from_db()
        for event in self.events:
            event.container = container
        audit.append(events=self.events)
        before = [False, *(truth.waits for truth in self.truth)]
        UsageSample.objects.bulk_create(
            UsageSample(
                at=self.at(second), gpu=gpu, container=container, used=truth.used[place], peak=truth.used[place],
                suspended=float(before[second]),
            )
            for second, truth in enumerate([*self.truth, now])
            for place, gpu in enumerate(self.gpus)
        )  # fmt: skip

    def _now(self) -> Truth:
        waits = bool(self.calls) or self.expected is not None
        return Truth(self._state(waits), waits, tuple(self.used.get(gpu, 0) for gpu in range(len(self.gpus))))

    def _state(self, waits: bool) -> State:
        if self.ended is not None:
            return State.KILLED if self.killed else State.FAILED
        if self.started is None:
            return State.CREATED
        if self.paused:
            return State.PAUSED
        return State.SUSPENDED if waits else State.RUNNING

    def _answered(self) -> float:
        return max(1e-3, self.seconds - self.calls.pop(0))

    def _expect_no_more(self) -> None:
        if self.expected is not None:
            self._tell(EventKind.RESUMED, waited=float(self.seconds - self.expected))
            self.expected = None

    def _use(self, kind: str, gpu: int, used: int, **fields: Any) -> None:
        self.used[gpu] = used
        self._tell(kind, self.gpus[gpu], used_after=used, **fields)

    def _tell(self, kind: str, gpu: Gpu | None = None, late: int = 0, **fields: Any) -> None:
        self.events.append(AllocationEvent(at=self.at(self.seconds + late), kind=kind, gpu=gpu, **fields))


STEPS = (
    Tale.granted, Tale.freed, Tale.suspended, Tale.resumed, Tale.rejected, Tale.waited_too_long, Tale.pause,
    Tale.unpause, Tale.restart, Tale.nobody_asked_again, Tale.nothing_much,
)  # fmt: skip


def stretches_of(truth: list[Truth]) -> list[tuple[State, int]]:
    """Seconds in each state, one after the other."""
    return [(state, len(list(run))) for state, run in itertools.groupby(truth, key=lambda each: each.state)]
