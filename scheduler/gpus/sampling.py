"""What processes compute on a card, as NVML samples it.

NVML looks at a card once in a sixth of a second to a second, by the card, and keeps who was there and how busy it was.
Asked for what was since some time, it gives one sample for each process that it saw since then: how much of *all* that
time it computed, and when it was seen last. Who was not seen is left out; where nobody was, nothing is said.

An H200's driver (580) sees one process a look, and takes all that was done since the look before for that one's: where
two compute at once, the half of each shows over many looks only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

SHORTEST_PERIOD, LONGEST_PERIOD = 1 / 6, 1.0  # seconds between two looks of NVML's (nvmlUtilization_t)
REPORTED = 0.1  # seconds after which NVML reports a look


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
        self._newest = 0  # microseconds since the epoch, NVML's own clock: up to then all is reported
        self._period = LONGEST_PERIOD  # seconds between two of NVML's looks; less, once two were seen that close

    def take(self, ask: Callable[[int], list[Any]], now: float) -> Work | None:
        """`ask`: NVML, for what was since then (µs); raises NVMLError. `now`: seconds. None: nobody has computed."""
        # What was long before it was asked last has been reported by now: if nothing was, none computed then, and what
        # is reported of the time since would be spread over that too. A look is reported late, of the time before it.
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
    """Per cent of the time since it asked last in which each process computed.

    Not made of `Work`: that ends when somebody was seen, and one that computes now and then would have too little.
    """

    def __init__(self, now: float) -> None:
        self._asked = now - LONGEST_PERIOD
        self._newest = 0.0  # when somebody was seen last

    def take(self, ask: Callable[[int], list[Any]], now: float) -> dict[int, float]:
        """As `Sampling.take`. No look at anybody is in two answers, and each is in one, however seldom a card looks."""
        since = max(self._newest, min(self._asked, now - LONGEST_PERIOD) - REPORTED)
        passed, self._asked = max(now - self._asked, 1e-3), now
        try:
            samples = [sample for sample in ask(int(since * 1e6)) if sample.timeStamp / 1e6 > since]
        except pynvml.NVMLError_NotFound:
            return {}
        self._newest = max([self._newest, *(sample.timeStamp / 1e6 for sample in samples)])
        looked = max(self._newest, now - REPORTED / 2) - since  # seconds, about
        return {sample.pid: sample.smUtil * looked / passed for sample in samples}
