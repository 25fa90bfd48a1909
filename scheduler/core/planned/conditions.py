"""What a planned launch waits for beside memory: others' ends, a time, a person. And what can never come."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from scheduler.core.planned.progress import End

ANY = "any"


@dataclass(frozen=True, slots=True)
class After:
    """It begins after `parent` has ended so: "ok", "failed", or "any" whatever became of it, also if it never began."""

    parent: str
    name: str
    ended: str = End.OK


def impossible(after: Iterable[After], ends: Mapping[str, End]) -> str:
    """Why it can never begin, as a sentence; empty if it can. `ends`: parent → how it ended, of those that have."""
    for each in after:
        end = ends.get(each.parent)
        if end is not None and not _holds(each, end):
            return f'It was to begin after "{each.name}" had {_words(each.ended)}, and that {_words(end)}.'
    return ""


def awaited(after: Iterable[After], ends: Mapping[str, End]) -> list[After]:
    """Those that have not ended."""
    return [each for each in after if each.parent not in ends]


def begins(begin_at: float | None, held: bool) -> float:
    """From when on it may: seconds since 1970; inf while a person holds it."""
    return inf if held else begin_at or -inf


def _holds(after: After, end: End) -> bool:
    if after.ended == ANY:
        return True
    return end is End.OK if after.ended == End.OK else end in (End.FAILED, End.KILLED)


def _words(ended: str) -> str:
    return {
        End.OK: "ended well", End.FAILED: "failed", End.KILLED: "was killed", End.NOT_STARTED: "never began",
    }.get(End(ended), ended)  # fmt: skip
