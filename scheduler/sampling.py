"""What processes compute on a card, as NVML samples it.

NVML looks at a card once in a sixth of a second to a second, by the card, and keeps who was there and how busy it was.
Asked for what was since some time, it gives one sample for each process that it saw since then: how much of *all* that
time it computed, and when it was seen last. Who was not seen is left out; where nobody was, nothing is said.

An H200's driver (580) sees one process a look, and takes all that was done since the look before for that one's: where
two compute at once, the half of each shows over many looks only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

SHORTEST_PERIOD, LONGEST_PERIOD = 1 / 6, 1.0  # seconds between two looks of NVML's (nvmlUtilization_t)


@dataclass(frozen=True, slots=True)
class Work:
    """What processes computed on a card from `since` to `until` (seconds of the epoch), as parts of that time."""

    since: float
    until: float
    parts: Mapping[int, float]


class Sampling:
    """Asks one card again and again what each process has computed since it was asked last."""

    def __init__(self, now: float) -> None:
        self._asked = now - LONGEST_PERIOD
        self._newest = 0  # microseconds since the epoch, NVML's own clock: up to then it has been told
        self._period = LONGEST_PERIOD  # seconds between two of NVML's looks; less, once two were seen that close

    def take(self, ask: Callable[[int], list[Any]], now: float) -> Work | None:
        """`ask`: NVML, for what was since then (µs); raises NVMLError. `now`: seconds. None: nobody has computed."""
        # What was long before it was asked last has been told by now: if nothing was, nobody computed then, and what
        # is told of the time since would be spread over that too. A look is told late, and is of the time before it.
        since = max(self._newest, int((self._asked - 2 * self._period) * 1e6))
        self._asked = now
        try:
            samples = [sample for sample in ask(since) if sample.timeStamp > since]
        except pynvml.NVMLError_NotFound:
            return None
        if not samples:
            return None
        newest = max(sample.timeStamp for sample in samples)
        self._period = max(SHORTEST_PERIOD, min(self._period, (newest - self._newest) / 1e6))
        self._newest = newest
        return Work(since / 1e6, newest / 1e6, {sample.pid: sample.smUtil / 100 for sample in samples})


class Busyness:
    """Per cent of the time since the last look in which each process computed."""

    def __init__(self, now: float) -> None:
        self._looked = now - LONGEST_PERIOD

    def take(self, work: Work | None, now: float) -> dict[int, float]:
        passed, self._looked = max(now - self._looked, 1e-3), now
        if work is None:
            return {}
        return {pid: 100 * part * (work.until - work.since) / passed for pid, part in work.parts.items()}
