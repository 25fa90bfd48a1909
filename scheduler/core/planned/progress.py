"""The runs of a planned launch. `at_once` is never exceeded, and no attempt of a run begins twice.

A run is under way from its first attempt until it ended well, or its last attempt failed: also while it waits for the
next one. So a record of runs is as small as `at_once`, however many values a sweep has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Any


class End(StrEnum):
    """How a container ended, or a planned launch."""

    OK = "ok"
    FAILED = "failed"
    KILLED = "killed"  # by a person or a time limit: a failure that is not tried again
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run, in `container` on these `gpus`."""

    container: str
    number: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retry:
    """The next attempt's number, and from when on it may begin: seconds since 1970."""

    number: int
    at: float


@dataclass(frozen=True, slots=True)
class Progress:
    """`next`: the first run that has never begun, from 1. `running`, `again`: by run."""

    next: int = 1
    running: Mapping[int, Attempt] = field(default_factory=dict)
    again: Mapping[int, Retry] = field(default_factory=dict)
    ok: int = 0
    failed: int = 0

    @property
    def under_way(self) -> int:
        return len(self.running) + len(self.again)


def next_run(progress: Progress, count: int, at_once: int, now: float) -> tuple[int, int] | None:
    """The run that may begin at `now`, and the number of its attempt; None: none may."""
    due = [run for run, retry in progress.again.items() if retry.at <= now]
    if due and len(progress.running) < at_once:  # at_once may have been lowered meanwhile
        run = min(due)
        return run, progress.again[run].number
    if progress.next <= count and progress.under_way < at_once:
        return progress.next, 1
    return None


def next_look(progress: Progress) -> float:
    """When a pause between two attempts is over; inf: there is none."""
    return min((retry.at for retry in progress.again.values()), default=inf)


def begun(progress: Progress, run: int, attempt: Attempt) -> Progress:
    """After `next_run` named it."""
    again = {other: retry for other, retry in progress.again.items() if other != run}
    return replace(progress, next=max(progress.next, run + 1), running={**progress.running, run: attempt}, again=again)


def over(progress: Progress, container: str, end: End, *, retries: int, again_at: float) -> Progress:
    """A container has ended. If it is not running any more nothing changes: an end may be reported twice."""
    run = next((run for run, attempt in progress.running.items() if attempt.container == container), None)
    if run is None:
        return progress
    number = progress.running[run].number
    progress = replace(progress, running={other: its for other, its in progress.running.items() if other != run})
    if end is End.OK:
        return replace(progress, ok=progress.ok + 1)
    if end is not End.KILLED and number <= retries:
        return replace(progress, again={**progress.again, run: Retry(number + 1, again_at)})
    return replace(progress, failed=progress.failed + 1)


def outcome(progress: Progress, count: int) -> End | None:
    """How all of it ended; None while it has not. OK only if each run did."""
    if progress.ok + progress.failed < count:
        return None
    return End.FAILED if progress.failed else End.OK


def called_off(progress: Progress) -> Progress:
    """Nothing more is to begin."""
    return replace(progress, again={}, failed=progress.failed + len(progress.again))


# ---- as it is kept ----------------------------------------------------------------------------------------------


def as_json(progress: Progress) -> dict[str, Any]:
    return {
        "next": progress.next,
        "ok": progress.ok,
        "failed": progress.failed,
        "running": {str(run): [its.container, its.number, *its.gpus] for run, its in progress.running.items()},
        "again": {str(run): [retry.number, retry.at] for run, retry in progress.again.items()},
    }


def from_json(kept: Mapping[str, Any]) -> Progress:
    return Progress(
        kept.get("next", 1),
        {int(run): Attempt(container, number, tuple(gpus))
         for run, (container, number, *gpus) in kept.get("running", {}).items()},
        {int(run): Retry(number, at) for run, (number, at) in kept.get("again", {}).items()},
        kept.get("ok", 0),
        kept.get("failed", 0),
    )  # fmt: skip
