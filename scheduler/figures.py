"""Figures of the scheduler's own work, counted where it happens and sent with each sign of life.

All of them begin at 0 when the scheduler starts, as whoever scrapes counters expects. They are noted in the event
loop's thread alone: a count costs less than a microsecond, and nothing is made of them there.
"""

import functools
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from scheduler.engines.base import Engine, EngineAway, EngineError

DECISIONS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds
LATENESS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
WAITS = (0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
WHY = ("away", "refused", "error")  # the engine does not answer; it said no, as to an unknown image; all else
CALLS = ("image_labels", "launch", "attach", "pause", "resume", "kill", "add_memory", "remove", "statuses")


class Histogram:
    """`bounds`: the highest seconds of each bucket; one more takes the rest."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def note(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def as_dict(self) -> dict[str, Any]:
        return {"bounds": list(self._bounds), "counts": list(self._counts), "sum": self._sum}


class Figures:
    def __init__(self) -> None:
        self.decisions = Histogram(DECISIONS)
        self.lateness = Histogram(LATENESS)
        self.waits = Histogram(WAITS)
        self.events = Counter[str]()
        # From 0 on: Prometheus sees no increase in a series that begins with its first count.
        self.calls = Counter(dict.fromkeys(CALLS, 0))
        self.failures = Counter({(call, why): 0 for call in CALLS for why in WHY})

    def event(self, kind: str, waited: float) -> None:
        """Something happened to a container's memory; `waited`: seconds, if a wait ended with it."""
        self.events[kind] += 1
        if waited and kind in ("resumed", "rejected"):
            self.waits.note(waited)

    def watch(self, engine: Engine) -> Engine:
        """The same engine, whose calls and failures are counted from now on."""
        for name in CALLS:
            setattr(engine, name, self._counting(name, getattr(engine, name)))
        return engine

    def _counting(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(call)
        async def counted(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            try:
                return await call(*arguments, **options)
            except Exception as error:
                self.failures[name, _why(error)] += 1
                raise

        return counted

    def as_dict(self, **more: Any) -> dict[str, Any]:
        """All of it as JSON takes it."""
        return {
            "decisions": self.decisions.as_dict(),
            "lateness": self.lateness.as_dict(),
            "waits": self.waits.as_dict(),
            "events": dict(self.events),
            "calls": dict(self.calls),
            "failures": [[name, why, count] for (name, why), count in self.failures.items()],
            **more,
        }


def _why(error: Exception) -> str:
    """One of WHY."""
    if isinstance(error, EngineAway):
        return "away"
    return "refused" if isinstance(error, EngineError) and error.status < 500 else "error"
