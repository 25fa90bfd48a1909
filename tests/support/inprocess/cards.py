"""Cards as objects: who holds what on them, who computes, and what NVML would tell of both, exactly."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pynvml

import shim.sim
from scheduler import clock
from scheduler.gpus import Card, Gpus, Reading
from scheduler.gpus.sampling import Work

MIB = 1 << 20
CONTEXT = 66 * MIB  # as of the simulated card
TINY = 1e-9  # seconds


class Computing:
    """The time of one card: who computes has the same part of it as each other. `stands`: that one gets none now."""

    def __init__(self, stands: Callable[[int], bool], cards: "Sequence[Computing]") -> None:
        """`cards`: of all cards of the host."""
        self.all = cards
        self.had: Counter[int] = Counter()  # pid → seconds of a card of its own, so far
        self._left: dict[int, float] = {}  # pid → of those it has asked for
        self._done: dict[int, asyncio.Future[None]] = {}
        self._stands, self._there = stands, list[int]()
        self._at = clock.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    async def compute(self, pid: int, seconds: float) -> None:
        """Returns once the process has had so many seconds of a card of its own. One call at a time."""
        done = asyncio.get_running_loop().create_future()
        self._left[pid], self._done[pid] = seconds, done
        self.changed()
        try:
            await done
        finally:
            for each in self.all:  # it may have been moved to another
                if each._done.get(pid) is done:
                    del each._left[pid], each._done[pid]
                    each.changed()

    def go(self, pid: int, to: "Computing") -> None:
        """It computes there from now on: what it has begun, too."""
        if to is not self:
            to._left[pid], to._done[pid] = self._left.pop(pid), self._done.pop(pid)

    def has(self, pid: int) -> bool:
        return pid in self._left

    def of(self, pid: int) -> float:
        """What it has had up to now; also for other threads."""
        there = self._there
        return self.had[pid] + ((clock.monotonic() - self._at) / len(there) if pid in there else 0.0)

    def changed(self) -> None:
        """To be called when somebody is stopped or let go, too."""
        now = clock.monotonic()
        part = (now - self._at) / max(1, len(self._there))
        self._at = now
        for pid in self._there:
            self.had[pid] += part
            if pid in self._left:
                self._left[pid] -= part
                if self._left[pid] < TINY and not self._done[pid].done():
                    self._done[pid].set_result(None)
        self._there = [pid for pid, left in self._left.items() if left >= TINY and not self._stands(pid)]
        if self._timer is not None:
            self._timer.cancel()
        least = min((self._left[pid] for pid in self._there), default=inf)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(least * len(self._there), self.changed) if least < inf else None


class Cards(Gpus):
    """What `scheduler.gpus.Gpus` is, by "sim:2x5GiB", without a driver or a thread.

    `held`: GPU → pid → bytes. `shows` and `silent` change what it shows: bytes more of a process, and a card that does
    not answer. `stands` tells whether a process is stopped on its cards. `reading`: figures of every reading, and
    `faulty` those of one card's.
    """

    def __init__(self, description: str, stands: Callable[[int], bool]) -> None:
        count, size = shim.sim.parse(description)
        uuids = [f"GPU-{index:08x}-0000-4000-8000-000000000000" for index in range(1, count + 1)]
        self.cards = {
            uuid: Card(uuid, index, "Simulated GPU", size, size, 0, simulated=True, shutdown_at=95)
            for index, uuid in enumerate(uuids)
        }
        self.lost: set[str] = set()
        self.contexts, self.unmeasured = dict.fromkeys(uuids, CONTEXT), set()
        self.driver, self.environment = "580.0 (simulated)", {}
        self.simulation = Path("/dev/null")
        self.held: dict[str, dict[int, int]] = {uuid: {} for uuid in uuids}
        self.shows: Counter[int] = Counter()
        self.silent: set[str] = set()
        self.reading: dict[str, Any] = {"temperature": 40, "power": 100.0}
        self.faulty: dict[str, dict[str, Any]] = {}
        everywhere: list[Computing] = []
        self.computing = {uuid: Computing(stands, everywhere) for uuid in uuids}
        everywhere += self.computing.values()
        self._reported: dict[tuple[str, str], tuple[float, Counter[int]]] = {}  # GPU, for whom → when, and had by then

    # ---- the cards' side ----

    def take(self, uuid: str, pid: int, size: int) -> bool:
        """Whether there was room."""
        held = self.held[uuid]
        if sum(held.values()) + size > self.cards[uuid].physical:
            return False
        held[pid] = held.get(pid, 0) + size
        return True

    def give(self, uuid: str, pid: int, size: int) -> None:
        self.held[uuid][pid] -= size

    def end(self, pid: int) -> None:
        for held in self.held.values():
            held.pop(pid, None)

    def go(self, pid: int, to: Mapping[str, str]) -> None:
        """The process was restored on other cards: old → new."""
        there = [old for old in to if self.computing[old].has(pid)]
        for old in there:
            self.computing[old].go(pid, self.computing[to[old]])

    def changed(self) -> None:
        for each in self.computing.values():
            each.changed()

    def had(self, pid: int) -> float:
        """Seconds of all cards so far."""
        return sum(each.of(pid) for each in self.computing.values())

    # ---- Gpus ----

    async def close(self) -> None: ...

    async def measure_contexts(self) -> list[str]:
        return []

    async def read(self) -> dict[str, Reading]:
        self.changed()
        self.lost = set(self.silent)
        return {uuid: self._reading(uuid) for uuid in self.cards if uuid not in self.silent}

    def _reading(self, uuid: str) -> Reading:
        shown = self._processes(uuid)
        done = self._since("reading", uuid)
        busy = {pid: 100 * part for pid, part in done.parts.items()} if done else {}
        whole = Reading(sum(shown.values()), shown, busy, utilisation=min(100, round(sum(busy.values()))))
        return replace(whole, **self.reading | self.faulty.get(uuid, {}))

    def _processes(self, uuid: str) -> dict[int, int]:
        return {pid: size + self.shows[pid] for pid, size in self.held[uuid].items()}

    async def processes(self, uuid: str) -> Mapping[int, int]:
        if uuid in self.silent:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self._processes(uuid)

    async def work(self, uuids: Iterable[str]) -> dict[str, Work | None]:
        self.changed()
        return {uuid: self._since("work", uuid) for uuid in uuids}

    def _since(self, asker: str, uuid: str) -> Work | None:
        now, had = clock.wall(), self.computing[uuid].had
        since, before = self._reported.get((asker, uuid), (now, Counter[int]()))
        self._reported[asker, uuid] = now, Counter(had)
        if now <= since or not (did := had - before):
            return None
        return Work(since, now, {pid: seconds / (now - since) for pid, seconds in did.items()})
