"""What each container computed on each of its GPUs: seconds that it had, that were due to it, that it was held back.

What each had is NVML's word everywhere: per cent of the time since the last look, if it tells processes apart; else
nothing is said. Where containers take turns on a GPU, the turns tell the rest. Elsewhere nobody is due anything.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from scheduler.core.turns import Standing
from scheduler.gpus import Reading
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store import Store

LATELY = 60.0  # seconds
LONGEST = 5.0  # seconds between two looks for which NVML's word is taken: it keeps few samples


class Part(NamedTuple):
    """Seconds of some time. None: not known."""

    had: float | None = None
    due: float | None = None
    held_back: float | None = None


def sum_of(parts: Iterable[Part]) -> Part:
    """The sum of what is known of each figure; None where nothing is."""
    known = [[value for value in figure if value is not None] for figure in zip(*parts, strict=True)]
    return Part(*(sum(values) if values else None for values in known))


class Shares:
    """`standing` tells what the turns have counted for a container on a GPU; None: that GPU has no turns."""

    def __init__(self, broker: Broker, store: Store, standing: Callable[[LiveContainer, str], Standing | None]) -> None:
        self.standing, self._broker, self._store = standing, broker, store
        self._at: float | None = None
        self._counted: dict[tuple[str, str], tuple[float, float]] = {}
        self._lately: dict[tuple[str, str], deque[tuple[float, Part]]] = {}  # each with when its time began

    def look(self, readings: Mapping[str, Reading]) -> dict[tuple[str, str], Part]:
        """By container and GPU what each had since the last look; its claims say what it had lately, and ever."""
        now = self._broker.now()
        passed = 0.0 if self._at is None else now - self._at
        self._at = now
        held = [(live, gpu) for live in self._broker.live_containers.values() for gpu in live.quota if gpu in readings]
        parts = {(live.id, gpu): self._since_last(live, gpu, readings[gpu], now, passed) for live, gpu in held}
        self._counted = {key: last for key, last in self._counted.items() if key in parts}
        self._lately = {key: minute for key, minute in self._lately.items() if key in parts}
        for live, gpu in held:
            self._show(live, gpu, parts[live.id, gpu], now, passed)
        return parts

    def _since_last(self, live: LiveContainer, gpu: str, reading: Reading, now: float, passed: float) -> Part:
        key = live.id, gpu
        part = Part(had=_by_nvml(live.pids_lately(now), reading, passed))
        if (standing := self.standing(live, gpu)) is None:
            self._counted.pop(key, None)
            return part
        counted = standing.due, standing.held_back
        last, self._counted[key] = self._counted.get(key, counted), counted
        return Part(part.had, *(max(0.0, new - old) for new, old in zip(counted, last, strict=True)))

    def _show(self, live: LiveContainer, gpu: str, part: Part, now: float, passed: float) -> None:
        lately = self._lately.setdefault((live.id, gpu), deque())
        lately.append((now - passed, part))
        while len(lately) > 1 and lately[1][0] <= now - LATELY:
            lately.popleft()
        life = live.computed[gpu] = sum_of([Part(*live.computed.get(gpu, ())), part])
        minute = _of_a_minute(sum_of(kept for _, kept in lately), part, now - lately[0][0])
        self._store.claim(live.id, gpu, **_rounded(life), **_rounded(minute, "_lately"))


def _of_a_minute(kept: Part, last: Part, covered: float) -> Part:
    """The part of `kept` that falls into the last minute. None where `last` has none: there are no turns now."""
    part = LATELY / max(LATELY, covered)
    figures = zip(kept, last, strict=True)
    return Part(*(None if figure is None or current is None else part * figure for figure, current in figures))


def _rounded(part: Part, suffix: str = "") -> dict[str, float | None]:
    """To what a person can tell apart: a row that looks the same is not written again."""
    return {name + suffix: None if value is None else round(value, 1) for name, value in part._asdict().items()}


def _by_nvml(pids: set[int], reading: Reading, passed: float) -> float | None:
    computed = None if passed > LONGEST else reading.computed(pids)
    return None if computed is None else passed * computed / 100
