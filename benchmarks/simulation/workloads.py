"""What is run in the experiments: lists of jobs, the same for the same seed on every machine.

`paper` is the workload of ConVGPU (Kang et al., IEEE CLUSTER 2017): six types of container (its Table III), of which
one at random starts every 5 s. Types run 5 to 45 s by size, taken here as equal steps. The card has 4742 MiB for
containers and each CUDA context takes 66 MiB of it. The others are of our own making.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from benchmarks.simulation import published

MIB = 2**20
CAPACITY = 4742 * MIB
CONTEXT = 66 * MIB

# name, MiB, seconds
TYPES = tuple((name, mib, 5.0 + 8 * step) for step, (name, mib) in enumerate(published.TYPES.items()))


@dataclass(frozen=True, slots=True)
class Job:
    """One container with one process: starts at `arrives`, asks for all of `asks` (bytes), one after the other.

    `pause`: seconds from having one to asking for the next. It runs for `seconds` once it has all of it. Its quota is
    `quota`, or exactly what it asks for.
    """

    name: str
    arrives: float
    asks: tuple[int, ...]
    seconds: float
    quota: int = 0
    owner: str = ""
    pause: float = 0.0

    @property
    def size(self) -> int:
        return self.quota or sum(self.asks)


def paper(count: int, seed: int) -> list[Job]:
    """The paper's: `count` containers of random types, one each 5 s."""
    random = Random(f"paper {count} {seed}")
    chosen = [random.choice(TYPES) for _ in range(count)]
    return [
        Job(f"{place}-{name}", 5.0 * place, (CONTEXT + mib * MIB,), seconds)
        for place, (name, mib, seconds) in enumerate(chosen)
    ]


def steps(count: int, seed: int) -> list[Job]:
    """The paper's jobs as programs really ask: for their context, then in two steps for most of what their quota is."""
    random = Random(f"steps {count} {seed}")
    jobs = []
    for job in paper(count, seed):
        whole = job.size - CONTEXT
        uses = int(whole * random.uniform(0.6, 1.0))
        asks = (CONTEXT, uses // 2, uses - uses // 2)
        jobs.append(replace(job, asks=asks, quota=job.size, pause=random.uniform(0.2, 1.0)))
    return jobs


def notebooks(count: int, seed: int) -> list[Job]:
    """Many notebooks that are open long and hold little; now and then somebody trains in one."""
    random = Random(f"notebooks {count} {seed}")
    jobs = []
    for place in range(count):
        trains = random.random() < 0.15
        mib, seconds = (random.choice((1536, 2560)), 60.0) if trains else (random.choice((128, 256, 384)), 90.0)
        seconds *= random.uniform(0.5, 1.5)
        jobs.append(Job(f"{place}", random.uniform(0, 4.0) + 4.0 * place, (CONTEXT + mib * MIB,), seconds))
    return jobs


def trainings(count: int, seed: int) -> list[Job]:
    """A few long trainings that take most of the card, among small evaluations."""
    random = Random(f"trainings {count} {seed}")
    jobs = []
    for place in range(count):
        if place % 6 == 0:
            mib, seconds = random.choice((2048, 3072, 4096)), random.uniform(60, 180)
        else:
            mib, seconds = random.choice((256, 512, 768)), random.uniform(5, 25)
        jobs.append(Job(f"{place}", 6.0 * place, (CONTEXT + mib * MIB,), seconds))
    return jobs


def burst(count: int, seed: int) -> list[Job]:
    """Everybody starts a sweep of short jobs at once, the evening before a deadline."""
    random = Random(f"burst {count} {seed}")
    return [
        Job(
            f"{place}",
            random.uniform(0, 10.0),
            (CONTEXT + random.choice((512, 1024, 1536)) * MIB,),
            random.uniform(5, 20),
            owner=f"user{place % 4}",
        )
        for place in range(count)
    ]


def hostile(count: int, seed: int) -> list[Job]:
    """Built to hurt `fair`: the first asks for nearly the whole card, and small ones never stop coming to pass it."""
    random = Random(f"hostile {count} {seed}")
    small = CONTEXT + 640 * MIB
    jobs = [Job(f"{place}", 4.0 * place, (small,), random.uniform(20, 30)) for place in range(count)]
    jobs[2] = Job("big", 8.0, (CONTEXT + 4608 * MIB,), 30.0)
    return jobs


WORKLOADS: dict[str, Callable[[int, int], list[Job]]] = {
    "paper": paper,
    "steps": steps,
    "notebooks": notebooks,
    "trainings": trainings,
    "burst": burst,
    "hostile": hostile,
}


def bound(jobs: list[Job]) -> float:
    """No schedule can finish earlier: the area of all jobs on the card, or some job's arrival plus its run."""
    area = sum(job.size * job.seconds for job in jobs) / CAPACITY
    return max(area, *(job.arrives + job.seconds for job in jobs))
