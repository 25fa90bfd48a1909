"""A lab's week of sweeps, launched all at once or queued: host memory that waits for GPU memory, and when all is done.

    python -m benchmarks.simulation.queued

Thirty sweeps of ten people on four cards of 80 GiB, handed in on the mornings and evenings of five days. Each run takes
its host memory as it starts, asks for all of its GPU memory at once and computes for so long once it has that. The
arbiter, the order of planned launches and the choice of cards are the appliance's own; the clock is simulated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from statistics import mean

from scheduler.containers import placement
from scheduler.core.arbiter import handle
from scheduler.core.effects import Granted
from scheduler.core.events import ContainerAdded, ContainerEnded, Event, GpuSeen, Needed, SessionOpened, Ticked
from scheduler.core.planned.order import Candidate, Queue, Shape
from scheduler.core.state import State

GIB, HOUR, CARDS, SWEEPS, PEOPLE = 1 << 30, 3600.0, 4, 30, 10
SEEDS = range(10)
LOOK = 60.0  # seconds between two looks at what waits


@dataclass(frozen=True, slots=True)
class Run:
    id: str
    owner: str
    at: float  # handed in
    quota: int
    memory: int  # of the host
    lasts: float


@dataclass(slots=True)
class Outcome:
    """`idle`: byte seconds of host memory of those that have no GPU memory yet; `done`: when the last has ended."""

    idle: float = 0.0
    done: float = 0.0
    waits: list[float] = field(default_factory=list)  # hours from the handing in to the computing


def week(seed: int) -> list[Run]:
    chance, runs = Random(seed), list[Run]()
    for sweep in range(SWEEPS):
        at = (24 * chance.randrange(5) + chance.choice((9.0, 18.0)) + chance.random()) * HOUR
        owner, quota = f"p{chance.randrange(PEOPLE)}", chance.choice((8, 12, 20, 40)) * GIB
        memory, lasts = chance.choice((4, 8, 16)) * GIB, chance.uniform(0.5, 3.0) * HOUR
        runs += [Run(f"{sweep}-{number}", owner, at, quota, memory, lasts * chance.uniform(0.7, 1.3))
                 for number in range(chance.randint(6, 16))]  # fmt: skip
    return sorted(runs, key=lambda run: (run.at, run.id))


class Host:
    def __init__(self, runs: list[Run], *, queued: bool) -> None:
        self.runs = {run.id: run for run in runs}
        self.state, self.queued, self.queue = State(policy="fair"), queued, Queue()
        self.sessions: dict[int, str] = {}
        self.without: dict[str, float] = {}  # run → since when it has its host memory, and no GPU memory
        self.ahead: list[tuple[float, int, str, str]] = []
        self.outcome = Outcome()
        for card in range(CARDS):
            self.do(GpuSeen(0.0, f"g{card}", 80 * GIB, 80 * GIB))
        for run in runs:
            self.later(run.at, "handed in", run.id)
        self.later(0.0, "look", "")

    def later(self, at: float, what: str, id_: str) -> None:
        heappush(self.ahead, (at, len(self.ahead), what, id_))

    def play(self) -> Outcome:
        left = set(self.runs)
        while left:
            now, _, what, id_ = heappop(self.ahead)
            if what == "handed in" and self.queued:
                run = self.runs[id_]
                self.queue.put(Candidate(id_, run.owner, now, Shape(run.quota), number=run.at, container=id_))
            elif what == "handed in":
                self.start(now, id_, placement.choose(self.state, 1, self.runs[id_].quota)[0])
            elif what == "ended":
                left.discard(id_)
                self.do(ContainerEnded(now, id_))
                self.outcome.done = now
            else:
                self.do(Ticked(now))
                self.later(now + LOOK, "look", "")
            while self.queued and self.begin(now):
                pass
        return self.outcome

    def begin(self, now: float) -> bool:
        """What may; whether anything did."""
        for event in self.queue.steps(lambda: self.state, now):
            self.do(event)
        begins = self.queue.promised(self.state)
        for its, gpus in begins:
            self.queue.drop(its.id)
            self.start(now, its.id, gpus[0])
        return bool(begins)

    def start(self, now: float, id_: str, gpu: str) -> None:
        run, session = self.runs[id_], len(self.sessions) + 1
        self.sessions[session], self.without[id_] = id_, now
        self.do(ContainerAdded(now, id_, {gpu: run.quota}, owner=run.owner))
        self.do(SessionOpened(now, session, id_))
        self.do(Needed(now, session, 1, gpu, run.quota))

    def do(self, event: Event) -> None:
        self.state, effects = handle(self.state, event)
        for each in effects:
            if isinstance(each, Granted):
                run = self.runs[self.sessions[each.session]]
                self.outcome.idle += run.memory * (event.now - self.without.pop(run.id))
                self.outcome.waits.append((event.now - run.at) / HOUR)
                self.later(event.now + run.lasts, "ended", run.id)


def compare(seed: int) -> Mapping[str, Outcome]:
    runs = week(seed)
    return {name: Host(runs, queued=name == "queued").play() for name in ("launched", "queued")}


def main() -> None:
    print("seed   idle host memory, TiB·h    part   all done after, h   mean wait, h")
    parts, later, unit = [], [], 1024 * GIB * HOUR
    for seed in SEEDS:
        a, b = compare(seed).values()
        parts.append(b.idle / a.idle)
        later.append(100 * (b.done / a.done - 1))
        idle = f"{a.idle / unit:8.1f} → {b.idle / unit:6.2f}"
        done = f"{a.done / HOUR:6.1f} → {b.done / HOUR:6.1f}"
        print(
            f"{seed:4}   {idle}       {100 * parts[-1]:5.2f} %   {done}     {mean(a.waits):5.1f} → {mean(b.waits):5.1f}"
        )
    print(f"at most {100 * max(parts):.2f} % of the idle host memory; done {min(later):+.1f} to {max(later):+.1f} %")


if __name__ == "__main__":
    main()
