"""Events that come too often are recorded as sums: a program may ask a thousand times a second, each time for a row.

Of rejected calls the first of its kind is recorded by itself, at once, and of all other events so many a second of a
container. What follows within the period is counted, and recorded in one sum when the period is over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class SumKind(NamedTuple):
    container: str
    gpu: str
    kind: str
    reason: str = ""


@dataclass(slots=True)
class Sum:
    """`largest` in bytes."""

    until: float
    count: int = 0
    largest: int = 0


class Sums:
    """`tell` is called with the kind, how many calls there were and the bytes of the largest."""

    def __init__(self, period: float, tell: Callable[[SumKind, int, int], None]) -> None:
        self.period, self._tell = period, tell
        self._sums: dict[SumKind, Sum] = {}

    def count(self, kind: SumKind, size: int, now: float) -> bool:
        """Adds a call of `size` bytes to the sum of its kind. False for the first, which is recorded by itself."""
        if kind not in self._sums:
            self._sums[kind] = Sum(now + self.period)
            return False
        self.add(kind, size, now)
        return True

    def add(self, kind: SumKind, size: int, now: float) -> None:
        """The same of one that is not recorded by itself, be it the first."""
        sum_ = self._sums.setdefault(kind, Sum(now + self.period))
        sum_.count += 1
        sum_.largest = max(sum_.largest, size)

    def tick(self, now: float) -> None:
        """Tells the sums whose period is over: to be called now and then."""
        for kind, sum_ in [(kind, sum_) for kind, sum_ in self._sums.items() if now >= sum_.until]:
            self._close(kind, sum_)
            if sum_.count:
                self._sums[kind] = Sum(now + self.period)

    def end(self, container: str) -> None:
        """Tells the sums of a container that has ended, without waiting for the end of their period."""
        for kind, sum_ in [(kind, sum_) for kind, sum_ in self._sums.items() if kind.container == container]:
            self._close(kind, sum_)

    def _close(self, kind: SumKind, sum_: Sum) -> None:
        del self._sums[kind]
        if sum_.count:
            self._tell(kind, sum_.count, sum_.largest)
