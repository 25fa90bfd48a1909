"""The arbiter on a simulated clock: the same decisions as the live scheduler's, thousands of hours in seconds.

`run` plays a list of jobs on one card under a policy; what it measures is what the paper measures. Policies named
`paper-…` are the paper's rules taken literally (`experiment/literal.py`), for comparison only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from benchmarks.simulation import literal
from benchmarks.simulation.workloads import CAPACITY, Job
from scheduler.core.arbiter import handle
from scheduler.core.effects import Granted, Rejected, TakeBack
from scheduler.core.events import (
    ContainerAdded,
    ContainerEnded,
    Event,
    GpuSeen,
    Needed,
    Returned,
    SessionOpened,
    Ticked,
)
from scheduler.core.state import State

GPU = "simulated"
ENDS, ARRIVES, ASKS, TICKS = range(4)  # at one moment in this order
TICK = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds. `suspended` is the mean over all jobs of the time that each waited, `longest` the longest single wait.

    `deadlocked`: at the end somebody waited and nobody ran; the times are then those up to that point.
    """

    finish: float
    suspended: float
    longest: float
    deadlocked: bool


def run(policy: str, jobs: Sequence[Job], seed: int = 0, capacity: int = CAPACITY) -> Outcome:
    """Plays `jobs` on one card of `capacity` bytes. `seed` is for policies that draw lots."""
    if policy in literal.RULES:
        waits, finish, deadlocked = literal.run(policy, jobs, seed, capacity)
        longest = max(waits)
    else:
        waits, longest, finish, deadlocked = _Simulation(policy, jobs, seed, capacity).play()
    return Outcome(finish, sum(waits) / len(jobs), longest, deadlocked)


class _Simulation:
    """Session i is the process of job i, its container is the job's place in the list."""

    def __init__(self, policy: str, jobs: Sequence[Job], seed: int, capacity: int) -> None:
        self.jobs = jobs
        self.state, _ = handle(State(policy=policy, seed=seed), GpuSeen(0.0, GPU, capacity))
        self.headroom = [0] * len(jobs)
        self.granted = [0] * len(jobs)  # how many of its asks each job has
        self.waits = [0.0] * len(jobs)  # of all its asks together
        self.longest = 0.0
        # (time, what, job): what ends at a moment is seen together with what arrives
        self.agenda = [(job.arrives, ARRIVES, place) for place, job in enumerate(jobs)]
        heapify(self.agenda)
        self.ticks = any(job.pause for job in jobs)  # else nothing follows from the passing of time alone

    def play(self) -> tuple[list[float], float, float, bool]:
        finish = 0.0
        while self.agenda:
            now = self.agenda[0][0]
            events: list[Event] = []
            while self.agenda and self.agenda[0][0] == now:
                _, what, place = heappop(self.agenda)
                if what == ARRIVES:
                    events += self._arrival(now, place)
                elif what == ASKS:
                    events += self._ask(now, place)
                elif what == TICKS:
                    events.append(Ticked(now))
                else:
                    finish = now
                    self.headroom[place] = 0
                    events.append(ContainerEnded(now, str(place)))
            while events:
                events = self._handle(now, events)
            if self.ticks and self.state.waiting and self.agenda and self.agenda[0][0] > now + TICK:
                heappush(self.agenda, (now + TICK, TICKS, -1))
        return self.waits, self.longest, finish, bool(self.state.waiting)

    def _arrival(self, now: float, place: int) -> list[Event]:
        job, name = self.jobs[place], str(place)
        return [
            ContainerAdded(now, name, {GPU: job.size}, owner=job.owner),
            SessionOpened(now, place, name),
            Needed(now, place, 0, GPU, job.asks[0]),
        ]

    def _handle(self, now: float, events: Sequence[Event]) -> list[Event]:
        """Carries out the effects; returns what the processes and the lease pages answer at once."""
        self.state, effects = handle(self.state, *events)
        answers: list[Event] = []
        for effect in effects:
            match effect:
                case Granted():
                    self.headroom[effect.session] += effect.extra
                    self.waits[effect.session] += effect.waited
                    self.longest = max(self.longest, effect.waited)
                    answers += self._go_on(now, effect.session)
                case TakeBack():
                    taken = {place: idle for place, idle in enumerate(self.headroom) if idle}
                    self.headroom = [0] * len(self.jobs)
                    answers.append(Returned(now, effect.gpu, taken, all=True))
                case Rejected():
                    raise ValueError(f"job {self.jobs[effect.session]} asks for more than its quota")
        return answers

    def _go_on(self, now: float, place: int) -> list[Event]:
        """It has what it asked for."""
        job = self.jobs[place]
        self.granted[place] += 1
        if self.granted[place] == len(job.asks):
            heappush(self.agenda, (now + job.seconds, ENDS, place))
            return []
        if not job.pause:
            return self._ask(now, place)
        heappush(self.agenda, (now + job.pause, ASKS, place))
        return []

    def _ask(self, now: float, place: int) -> list[Event]:
        ask = self.jobs[place].asks[self.granted[place]]
        if self.headroom[place] < ask:
            return [Needed(now, place, self.granted[place], GPU, ask)]
        self.headroom[place] -= ask
        return self._go_on(now, place)
