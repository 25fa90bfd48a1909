"""The paper's four rules taken literally, for comparison only: a waiting container holds a partial assignment.

As ConVGPU (Kang et al., IEEE CLUSTER 2017) describes them: a container is assigned memory when it starts, as much as
there is up to what it needs. What is missing it waits for, keeping what it has. When a container ends, a rule picks a
waiting container, which is given what is there up to what it needs; if something is left, the rule picks the next.

- `paper-fifo`: the one that has waited longest.
- `paper-best-fit`: the one whose missing part fits what is there most closely; if none fits, the one missing least.
- `paper-recent-use`: the one suspended most recently.
- `paper-random`: any.

Memory in the hands of containers that wait does not come back: with the last two, mostly, and at times with Best-Fit,
all of it ends there. Under FIFO only the first in line ever holds a part, so it cannot happen.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from random import Random

from benchmarks.simulation.workloads import Job

# (waiting: job → bytes missing, in order of arrival; bytes free; lots) → the job that is given memory
Rule = Callable[[dict[int, int], int, Random], int]


def _fifo(waiting: dict[int, int], free: int, lots: Random) -> int:
    return next(iter(waiting))


def _best_fit(waiting: dict[int, int], free: int, lots: Random) -> int:
    fitting = [job for job, missing in waiting.items() if missing <= free]
    return max(fitting, key=waiting.__getitem__) if fitting else min(waiting, key=waiting.__getitem__)


def _recent_use(waiting: dict[int, int], free: int, lots: Random) -> int:
    return next(reversed(waiting))


def _random(waiting: dict[int, int], free: int, lots: Random) -> int:
    return lots.choice(list(waiting))


RULES: dict[str, Rule] = {
    "paper-fifo": _fifo,
    "paper-best-fit": _best_fit,
    "paper-recent-use": _recent_use,
    "paper-random": _random,
}


def assign(
    rule: Rule, waiting: dict[int, int], free: int, lots: Random, first: int | None = None
) -> tuple[int, list[int]]:
    """Hands out what is free, to `first` and then by the rule; takes those who have all out of `waiting`.

    Returns what is left and who can run now, in order.
    """
    ready = []
    while free and waiting:
        job = rule(waiting, free, lots) if first is None else first
        first = None
        given = min(free, waiting[job])
        free -= given
        waiting[job] -= given
        if not waiting[job]:
            del waiting[job]
            ready.append(job)
    return free, ready


def run(policy: str, jobs: Sequence[Job], seed: int, capacity: int) -> tuple[list[float], float, bool]:
    """Waited seconds by job, when the last one ended, and whether somebody was left waiting with nobody running."""
    rule, lots = RULES[policy], Random(f"literal {seed}")
    free, finish = capacity, 0.0
    waiting: dict[int, int] = {}
    waits = [0.0] * len(jobs)
    agenda = [(job.arrives, 1, place) for place, job in enumerate(jobs)]
    heapify(agenda)
    while agenda:
        now, arrives, place = heappop(agenda)
        if arrives:
            waiting[place] = jobs[place].size
            free, ready = assign(rule, waiting, free, lots, first=place)
        else:
            free, ready = assign(rule, waiting, free + jobs[place].size, lots)
            finish = now
        for job in ready:
            waits[job] = now - jobs[job].arrives
            heappush(agenda, (now + jobs[job].seconds, 0, job))
    return waits, finish, bool(waiting)
