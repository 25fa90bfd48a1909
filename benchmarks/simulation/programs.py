"""Programs of a lab's day, how long their memory takes to move, and the record of what happened to them."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

GIB = 2**30

# GiB → seconds: the first time out, out again, the first time back, back again
MEASURED = {4: (5.6, 2.9, 1.3, 1.3), 16: (9.6, 8.6, 3.3, 2.9), 40: (22.0, 20.0, 7.4, 6.9)}
SPEEDS: dict[str, Any] = {"out": 2.0 * GIB, "back": 6.0 * GIB, "least": 1.0}  # as the arbiter is given it


def takes(size: int, *, back: bool, first: bool) -> float:
    """How long a transfer takes: on the straight line through the two measurements beside `size`."""
    sizes, column = list(MEASURED), 2 * back + (not first)
    place = min(max(bisect(sizes, size / GIB), 1), len(sizes) - 1)
    (low, high) = sizes[place - 1 : place + 1]
    took, takes = MEASURED[low][column], MEASURED[high][column]
    return took + (takes - took) * (size / GIB - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Program:
    """One container with one process that takes `size` bytes as it starts.

    `cells`: seconds of pause, then of computing, one after the other; then it ends. At `until` it is closed, unless it
    is in a cell. `then`: what its owner starts when it has ended, at that time.
    """

    kind: str
    arrives: float
    size: int
    cells: tuple[tuple[float, float], ...]
    until: float = inf
    owner: str = ""
    then: Callable[[float], Program] | None = None


class Stall(NamedTuple):
    """`ahead`: how many waited already as it began. `start`: it had nothing yet."""

    place: int
    began: float
    seconds: float
    ahead: int
    start: bool


Sums = defaultdict[str, float]


def sums() -> Sums:
    return defaultdict(float)


@dataclass(slots=True)
class Day:
    """What happened. `cells`: of each cell after the first, the seconds that it was stalled before it began.

    By owner, of the times in which somebody waited for the card: byte·seconds held, seconds computed, and both due.
    `wanted_due`: byte·seconds, as if nobody were due more than its containers there take, and the others the rest.
    `least`: by group and person without one, what they held less all of it that others could have had (`lab.py`).
    `begun`: of all that have not ended, the parts of their last cells that they have computed, added up.
    """

    stalls: list[Stall] = field(default_factory=list)
    cells: list[float] = field(default_factory=list)
    outs: int = 0
    moving: float = 0.0
    finish: float = 0.0
    held: Sums = field(default_factory=sums)
    held_due: Sums = field(default_factory=sums)
    wanted_due: Sums = field(default_factory=sums)
    least: Sums = field(default_factory=sums)
    computed: Sums = field(default_factory=sums)
    computed_due: Sums = field(default_factory=sums)
    ended: Sums = field(default_factory=sums)
    begun: float = 0.0
    starts: dict[str, list[float]] = field(default_factory=dict)  # seconds until each start
