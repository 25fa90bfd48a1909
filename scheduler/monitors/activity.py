"""Sees that one whose memory gave way wants to compute again: its processes do otherwise than while it was idle.

A call of ours (an allocation) says so by itself. Any other CUDA call blocks in the driver, which tells nobody. So once
a second it is looked at what each of its processes has used of a processor and where each thread waits, and that is
compared with what was seen while it computed nothing:

- it has used more than `WAKES`, and more than twice as much as in any second of the last minute: somebody runs a
  cell, a request has come;
- a thread has waited for `STUCK` looks, without running in between, where it has never been seen waiting: it is in a
  call that does not return.

Measured: an idle ipykernel that is pinged once a second uses 0.1 ms of a processor a second and never more than 0.5;
the shortest cell, `1 + 1`, 6 ms. What other processes of the container use (a notebook server's, say) does not count.

Where the threads of one waited while it was idle is kept in a file while it is out, for the next scheduler: to that one
a call that has blocked already would look like all that it has ever seen. Of whom nothing is known may want to compute.
"""

import json
import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from scheduler import proc
from scheduler.core.events import ActivityDetected
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer
from scheduler.sessions.looks import detached_thread

log = logging.getLogger(__name__)

WAKES = 0.002  # seconds of a processor in a second
REMEMBERED = 60  # looks, a second apart
MOST = 512  # threads of a container that are looked at, the oldest first: how many it has is its own choice
PLACES = 64  # of one thread that are remembered: in how many it waits is its choice, too
STUCK = 3  # looks in a row
DRIVERS = b"cuda"  # how the driver's own threads are called: they wait elsewhere once the memory is out

Place = tuple[str, ...]  # the system call that a thread is in, what it waits for, and from where it called
Places = dict[int, set[Place]]  # thread → where it waits


@dataclass(frozen=True)
class Look:
    """At a process. `used`: seconds of a processor, of all its threads so far. `waits`: of each where, and how often it
    has stopped running. `threads`: all that were looked at, those that run, too."""

    used: float
    waits: Mapping[int, tuple[Place, int]]
    threads: frozenset[int]


@dataclass
class Habits:
    """How one process behaves while it computes nothing."""

    last: Look
    used: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    places: Places = field(default_factory=dict)
    stuck: Counter[int] = field(default_factory=Counter)  # thread → looks in a row at a place where it never was
    moves: bool = False

    def skip(self, now: Look) -> None:
        """While its memory is moved: its own threads do that."""
        self.last, self.moves = now, True

    def note(self, now: Look) -> bool:
        """Whether it does otherwise."""
        if self.moves:  # until a moment ago
            self.last, self.moves = now, False
            return False
        used = max(0.0, now.used - self.last.used)
        wakes = used > max(WAKES, 2 * max(self.used, default=0.0))
        self.used.append(used)
        stays = {thread for thread, wait in now.waits.items() if self.last.waits.get(thread) == wait}
        self.last = now
        self.places = {thread: at for thread, at in self.places.items() if thread in now.threads}
        self.stuck = Counter({thread: looks for thread, looks in self.stuck.items() if thread in now.threads})
        for thread, (place, _) in now.waits.items():
            known = self.places.setdefault(thread, {place})
            new = place not in known and thread in stays
            self.stuck[thread] = self.stuck[thread] + 1 if new else 0
        return wakes or max(self.stuck.values(), default=0) >= STUCK

    def learn(self, now: Look) -> None:
        """While it is idle on its cards: whatever it does, it does without computing."""
        self.note(now)
        for thread in now.threads:  # also those that run: where one waits first once the memory is out, it never was
            known = self.places.setdefault(thread, set())
            if thread in now.waits and len(known) < PLACES:
                known.add(now.waits[thread][0])


class Activity:
    """`folder`: where the habits of those that are out are kept."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker, self._folder = broker, folder
        self._habits: dict[int, Habits] = {}  # session → its habits
        self._kept: set[str] = set()  # containers that are out, whose habits are in the folder
        self._strange: set[str] = set()  # those of them whose habits nobody knows

    async def look(self) -> None:
        """To be called once a second."""
        live_containers = [live for live in self._broker.live_containers.values() if self._is_looked_at(live)]
        pids: dict[int, tuple[int, int]] = {}
        for live in live_containers:
            living = [each for each in live.sessions.values() if not each.ended][:MOST]
            pids |= {each.id: (each.pid, MOST // len(living)) for each in living}
        looks = await detached_thread(partial(_look, pids)) if pids else {}
        self._habits = {id_: habits for id_, habits in self._habits.items() if id_ in looks}
        for live in live_containers:
            if live.swap and live.id not in self._kept:
                await self._keep(live, looks)
        for gone in self._kept - {live.id for live in self._broker.live_containers.values() if live.swap}:
            await detached_thread(partial(self._file(gone).unlink, missing_ok=True))
            self._kept.discard(gone)
            self._strange.discard(gone)
        self._habits |= {id_: Habits(now) for id_, now in looks.items() if id_ not in self._habits}
        for live in live_containers:
            mine = {id_: now for id_, now in looks.items() if id_ in live.sessions}
            if live.is_out and live.gave_way and not live.paused:  # who was paused by a person comes back by one
                stirs = [id_ for id_, now in mine.items() if self._habits[id_].note(now)]
                if stirs or live.id in self._strange:
                    self._strange.discard(live.id)
                    self._broker.tell(ActivityDetected(self._broker.now(), live.id))
            else:
                for id_, now in mine.items():
                    (self._habits[id_].skip if live.swap else self._habits[id_].learn)(now)

    async def _keep(self, live: LiveContainer, looks: Mapping[int, Look]) -> None:
        """Its habits, or takes over those that an earlier scheduler has kept."""
        self._kept.add(live.id)
        pids = {id_: session.pid for id_, session in live.sessions.items() if id_ in looks}
        known = {pids[id_]: its.places for id_ in pids if (its := self._habits.get(id_)) and its.places}
        try:
            if known:
                await detached_thread(partial(_write, self._file(live.id), known))
                return
            known = await detached_thread(partial(_read, self._file(live.id)))
        except (OSError, ValueError) as error:
            if live.gave_way:  # who was paused by a person comes back by one
                log.warning("how container %s behaves while it is idle is not known: %s", live, error)
        self._habits |= {id_: Habits(looks[id_], places=known[pid]) for id_, pid in pids.items() if pid in known}
        if not known:
            self._strange.add(live.id)

    def _file(self, container: str) -> Path:
        return self._folder / f"{container}.json"

    def _is_looked_at(self, live: LiveContainer) -> bool:
        """Those that may give way soon are looked at before they do, and kept in mind while they move."""
        core = self._broker.state.containers.get(live.id)
        if live.finished or live.paused or core is None:
            return False
        return bool(live.swap) or core.idle_since is not None


def _write(file: Path, known: Mapping[int, Places]) -> None:
    file.parent.mkdir(mode=0o700, exist_ok=True)
    places = {pid: {thread: sorted(at) for thread, at in threads.items()} for pid, threads in known.items()}
    whole = file.with_suffix(".new")
    whole.write_text(json.dumps(places))
    whole.replace(file)


def _read(file: Path) -> dict[int, Places]:
    """Process → where its threads waited. Raises OSError or ValueError."""
    found = json.loads(file.read_text()).items()
    return {
        int(pid): {int(thread): {tuple(place) for place in at} for thread, at in threads.items()}
        for pid, threads in found
    }


def _look(pids: Mapping[int, tuple[int, int]]) -> dict[int, Look]:
    """Session → what is seen of its process. `pids`: session → its process, and how many threads are looked at."""
    return {session: _look_at(pid, most) for session, (pid, most) in pids.items()}


def _look_at(pid: int, most: int) -> Look:
    """A thread is called whatever its program likes, in any bytes."""
    used, waits, threads = 0, {}, set()
    for task in map(Path, proc.threads(pid, most)):
        try:
            used += int((task / "schedstat").read_text().split()[0])  # in nanoseconds, unlike /proc/PID/stat
            threads.add(int(task.name))
            if not (task / "comm").read_bytes().startswith(DRIVERS):
                call, *arguments = (task / "syscall").read_text().split()
                if len(arguments) == 8:  # else it runs
                    waits[int(task.name)] = (call, arguments[0], arguments[-1]), _switches(task)
        except (OSError, IndexError):  # it has ended, or this scheduler may not look where it waits
            continue
    return Look(used / 1e9, waits, frozenset(threads))


def _switches(task: Path) -> int:
    lines = (line.split(b":\t") for line in (task / "status").read_bytes().split(b"\n"))
    return sum(int(line[1]) for line in lines if line[0].endswith(b"voluntary_ctxt_switches"))
