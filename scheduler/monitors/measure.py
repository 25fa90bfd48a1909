"""Once a second: compares what was charged with what the card shows, and keeps capacity, display and history true.

The card's per-process figure is the truth. What it shows beyond the charge is overhead (a context larger than
measured, modules, libraries) and is charged; what it no longer shows is given back. A reading is not taken at the
same instant as the page, so only a difference seen several times in a row counts, at its smallest; after one that is
not charged yet, or a process that may have got past the shim, the next looks come sooner.

A program that execs another keeps its process, and so its session, but not its memory: where the card has not shown a
process for as many looks and its page is mapped no more, the session has ended.

What no session accounts for is foreign and comes off the capacity; so does, at once, what a process holds beyond its
lease: it said that it had freed it, others may have been promised it, and to charge it takes several
looks. A process inside a container of ours that has no session is uncapped: it got past the shim. So did one with a
session that holds far more than it charged itself, where that takes its container beyond the quota: contexts and
libraries are not that large.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

from scheduler.card.gates import ranks
from scheduler.core.events import GpuSeen, Ticked
from scheduler.gpus import Reading
from scheduler.monitors.foreign_processes import ForeignProcesses
from scheduler.sessions.live_containers import LiveContainer, Session, program_of
from scheduler.shared import SharedParts

log = logging.getLogger(__name__)

PERIOD = 1.0  # seconds
AGAIN = 0.25  # seconds, while a difference has been seen and not often enough
TIMES = 3  # a difference must be seen so often in a row, and a process be missing
LIBRARIES = (
    1 << 30
)  # bytes; what code takes on a card beyond a context: PyTorch 156 MiB (H200), older CUDA up to 0.7 GiB

Process = tuple[int, int | None]  # pid and start: what names one for good
Replaced = Callable[[list[Session]], None]
Measured = Callable[[Mapping[str, Reading]], Awaitable[None]]
Uncapped = Callable[[Mapping[str, Mapping[int, int]]], bool]


@dataclass(slots=True)
class Difference:
    """What the card has shown beyond what was charged, lately."""

    seen: deque[int] = field(default_factory=lambda: deque(maxlen=TIMES))

    @property
    def open(self) -> bool:
        """More was held than is charged, and that has not been seen often enough."""
        return bool(self.seen) and self.seen[-1] > 0

    def add(self, size: int) -> int:
        """The part that all of the last readings agree on: more than 0, less than 0, or 0."""
        self.seen.append(size)
        if len(self.seen) < TIMES:
            return 0
        agreed = min(self.seen) if min(self.seen) > 0 else max(self.seen) if max(self.seen) < 0 else 0
        if agreed:
            self.seen.clear()
        return agreed


class Measure:
    """`measured` is called each time.

    `past` is given who got past the shim (container → pid → bytes on all cards) after each look, and says whether it
    waits to see that again. `replaced` is given sessions that no card shows, and ends those whose process runs another
    program now.
    """

    def __init__(self, shared: SharedParts, replaced: Replaced, past: Uncapped, measured: Measured) -> None:
        self._gpus, self._broker, self._store = shared.gpus, shared.broker, shared.store
        self._owns, self._replaced, self._past = shared.engine.owns, replaced, past
        self._again = False  # somebody seems to have got past the shim, and is not reported yet
        self._measured = measured
        self._differences: dict[tuple[int, str], Difference] = {}
        self._missing: dict[int, int] = {}  # session → looks in a row in which no card showed it
        self._foreign: dict[str, deque[int]] = {uuid: deque(maxlen=2) for uuid in shared.gpus.cards}
        self._described = ForeignProcesses()
        self._owners: dict[Process, str] = {}  # process → container
        self._strangers: dict[Process, set[str]] = {}  # process → containers that it does not run in, by engine id
        self.readings: Mapping[str, Reading] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self.once()
            due = max(due + PERIOD, loop.time())
            while loop.time() + AGAIN < due and (gpus := self._unsettled()):
                await asyncio.sleep(AGAIN)
                await self._look_again(gpus)
            await asyncio.sleep(due - loop.time())

    def _unsettled(self) -> set[str]:
        """The GPUs on which something was seen, and not often enough."""
        if self._again:
            return set(self.readings)
        return {gpu for (_, gpu), each in self._differences.items() if each.open and gpu in self.readings}

    async def _look_again(self, gpus: set[str]) -> None:
        for gpu in gpus:
            before, leased = self._used(), self._leased()
            with contextlib.suppress(pynvml.NVMLError):  # the next full measurement reports it
                shown = await self._gpus.processes(gpu)
                self._compare(gpu, shown, before)
                self._see_capacity(gpu, shown, leased)
                self.readings = {**self.readings, gpu: replace(self.readings[gpu], processes=shown)}
        if self._again:
            await self._see_live_containers()

    def _used(self) -> dict[tuple[int, str], int]:
        return {(s.id, gpu): lease.used for s in self._broker.sessions.values() for gpu, lease in s.leases.items()}

    def _leased(self) -> dict[tuple[int, str], int]:
        return {(s.id, gpu): lease.granted for s in self._broker.sessions.values() for gpu, lease in s.leases.items()}

    async def once(self) -> None:
        before, leased = self._used(), self._leased()
        self.readings = await self._gpus.read()
        for gpu, reading in self.readings.items():
            self._compare(gpu, reading.processes, before)
            self._see_card(gpu, reading)
            self._see_capacity(gpu, reading.processes, leased)
        self._see_foreign_processes()
        await self._see_live_containers()
        shown = {pid for reading in self.readings.values() for pid in reading.processes}
        self._owners = {process: owner for process, owner in self._owners.items() if process[0] in shown}
        self._strangers = {process: asked for process, asked in self._strangers.items() if process[0] in shown}
        self._described.forget(shown)
        alive = self._broker.sessions.keys()
        self._differences = {key: value for key, value in self._differences.items() if key[0] in alive}
        self._look_for_replaced()
        self._broker.tell(Ticked(self._broker.now()))
        self._broker.waits.age_order()
        await self._measured(self.readings)

    def _look_for_replaced(self) -> None:
        shown = {gpu: reading.processes for gpu, reading in self.readings.items()}
        missing = [
            session.id
            for session in self._broker.sessions.values()
            if not session.ended
            and not self._broker.live_containers[session.container].swap
            and all(gpu in shown and session.pid not in shown[gpu] for gpu in session.leases)
        ]
        self._missing = {id_: self._missing.get(id_, 0) + 1 for id_ in missing}
        if looked := [self._broker.sessions[id_] for id_, times in self._missing.items() if times % TIMES == 0]:
            self._replaced(looked)

    def _compare(self, gpu: str, held: Mapping[int, int], before: Mapping[tuple[int, str], int]) -> None:
        for session in list(self._broker.sessions.values()):
            lease = session.leases.get(gpu)
            if lease is None or session.ended or session.pid not in held:
                continue
            if self._broker.live_containers[session.container].swap:
                continue  # what it has on the card comes and goes
            if lease.check():
                log.warning(
                    "container %s, process %d forged its lease page",
                    self._broker.live_containers[session.container],
                    session.pid,
                )
            used = lease.used
            if before.get((session.id, gpu)) != used:
                continue  # it allocated or freed while the card was read
            difference = self._differences.setdefault((session.id, gpu), Difference())
            if agreed := difference.add(held[session.pid] - used):
                self._broker.overhead(session, gpu, agreed)

    def _see_card(self, gpu: str, reading: Reading) -> None:
        mine = {s.pid: s.leases[gpu].used for s in self._broker.sessions.values() if gpu in s.leases}
        # Where NVML does not show a process of ours, what it was charged is the best guess.
        known = sum(reading.processes.get(pid, used) for pid, used in mine.items())
        seen = self._foreign[gpu]
        seen.append(max(0, reading.used - known))
        self._store.gpu(
            gpu,
            real=reading.used,
            foreign=min(seen),  # what came between the readings of the card and of its processes is gone in the next
            utilisation=reading.utilisation,
            temperature=reading.temperature,
            power=reading.power,
        )

    def _see_capacity(self, gpu: str, held: Mapping[int, int], leased: Mapping[tuple[int, str], int]) -> None:
        """`leased`: before the card was read. What has been freed and taken back since then it may show still."""
        leases = ((s, s.leases[gpu].granted) for s in self._broker.sessions.values() if gpu in s.leases)
        beyond = sum(max(0, held.get(s.pid, 0) - max(size, leased.get((s.id, gpu), 0))) for s, size in leases)
        card = self._gpus.cards[gpu]
        capacity = card.capacity(min(self._foreign[gpu], default=0) + beyond)
        if capacity != self._broker.state.gpus[gpu].capacity:
            self._broker.tell(GpuSeen(self._broker.now(), gpu, capacity, card.capacity(0)))

    def _see_foreign_processes(self) -> None:
        """Tells who holds memory and is no container's."""
        ours = {session.pid for session in self._broker.sessions.values()}
        for gpu, reading in self.readings.items():
            others = {pid: size for pid, size in reading.processes.items() if pid not in ours}
            held = {pid: size for pid, size in others.items() if not self._owner(pid, gpu)}
            self._store.gpu(gpu, strangers=self._described.described(held))

    async def _see_live_containers(self) -> None:
        """One after the other, and others have the loop in between: each may have a thousand processes."""
        uncapped: dict[str, dict[int, int]] = {}
        # As the cards were read: a process that ends while the first containers are looked at did not get past the
        # shim.
        known = {session.pid for session in self._broker.sessions.values()} | self._broker.unseen
        for live in list(self._broker.live_containers.values()):
            await asyncio.sleep(0)
            if self._broker.live_containers.get(live.id) is not live:
                continue  # it has ended meanwhile
            held = self._see_live_container(live, known)
            live.note_gone(live.past_shim.keys() - held.keys(), self._broker.now())
            live.past_shim = held
            if held:
                uncapped[live.id] = held
        self._again = self._past(uncapped)

    def _see_live_container(self, live: LiveContainer, known: Collection[int]) -> dict[int, int]:
        """Those of its processes that got past the shim: host pid → bytes on all cards."""
        held: dict[int, int] = {}
        self._broker.collect_excess(live)
        self._broker.show(live)
        sessions = {session.pid for session in live.sessions.values()}
        for gpu in live.quota:
            if reading := self.readings.get(gpu):
                processes = self._processes(live, gpu, reading, known)
                # What a session holds beyond its charge is known to be its own, and charged soon.
                unexplained = sum(each["real"] for each in processes if each["pid"] not in sessions)
                self._store.claim(live.id, gpu, processes=processes, unexplained=unexplained)
                for each in processes:
                    if each["uncapped"]:
                        held[each["pid"]] = held.get(each["pid"], 0) + each["real"]
        return held

    def _processes(
        self, live: LiveContainer, gpu: str, reading: Reading, known: Collection[int]
    ) -> list[dict[str, Any]]:
        sessions = {session.pid: session for session in live.sessions.values()}
        rows = [self._process(session, gpu, reading) for session in sessions.values()]
        if sum(each["real"] for each in rows) > live.quota[gpu] + LIBRARIES:
            for each in rows:
                lease = sessions[each["pid"]].leases[gpu]
                each["uncapped"] |= each["real"] - (lease.used - lease.measured) > LIBRARIES
        for pid, size in reading.processes.items():
            if not (pid in known or pid in sessions) and self._owner(pid, gpu) == live.id:
                rows.append({"pid": pid, "used": 0, "real": size, "uncapped": True})
        return rows

    def _process(self, session: Session, gpu: str, reading: Reading) -> dict[str, Any]:
        used = session.leases[gpu].used
        real = reading.processes.get(session.pid, used if not session.ended else 0)
        row = {"pid": session.pid, "used": used, "real": real, "uncapped": session.leases[gpu].forged}
        its = ranks({session.pid: session.page.gate}) if not session.ended else []
        return row | ({"ranks": [rank for rank, _, _ in its], "of": its[0][1]} if its else {})

    def _owner(self, pid: int, gpu: str) -> str:
        """The container that a process without a session runs in; empty if it is none of those that run now."""
        program = program_of(pid)
        process = (pid, program and program.started)
        if process not in self._owners:
            # Kept, and not asked again each second; a container that has started since is one more to ask.
            asked = self._strangers.setdefault(process, set())
            candidates = [
                t for t in self._broker.live_containers.values() if gpu in t.quota and t.engine_id not in ("", *asked)
            ]
            owner = next((t.id for t in candidates if self._owns(t.engine_id, pid)), "")
            asked.update(t.engine_id for t in candidates)
            if not owner:
                return ""
            self._owners[process] = owner
        return self._owners[process]
