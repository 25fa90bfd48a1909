"""What giving way is worth, and what it costs: a lab's day, of our own making, and the paper's workload.

In the lab, notebooks are open from the morning to the evening. They hold 10 to 60 GiB and compute a tenth of the time,
in sittings: for about half an hour cells of a few minutes with short pauses, then nothing for an hour or two. Three
times a day somebody sends off a burst of short jobs, and in the evening two trainings begin that run over the night.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from random import Random
from statistics import fmean, median, quantiles

from benchmarks.simulation.lab import LATER, play
from benchmarks.simulation.programs import GIB, SPEEDS, Day, Program, Stall, takes
from benchmarks.simulation.report import SHORT, aligned
from benchmarks.simulation.workloads import CAPACITY, paper
from scheduler.core.moves.preemption import WORTH
from scheduler.core.people.heads import PATIENCE
from scheduler.core.state import Mode, Preemption

HOUR, MINUTE = 3600.0, 60.0
CLOSING = 10 * HOUR  # after the day has begun


@dataclass(frozen=True, slots=True)
class Lab:
    """`cards`: bytes of each. `burst`: jobs in one."""

    name: str
    cards: tuple[int, ...]
    notebooks: int
    burst: int


LABS = (
    Lab("80 GiB", (80 * GIB,), notebooks=5, burst=6),
    Lab("2 x 141 GiB", (141 * GIB,) * 2, notebooks=18, burst=20),
)

RULES = {
    "off": Preemption(),
    "idle, 30 min": Preemption(Mode.IDLE, idle=30 * MINUTE, **SPEEDS),
    "idle, 10 min": Preemption(Mode.IDLE, idle=10 * MINUTE, **SPEEDS),
    "rotate, 30 min": Preemption(Mode.ROTATE, idle=30 * MINUTE, **SPEEDS),
    "rotate, 10 min": Preemption(Mode.ROTATE, idle=10 * MINUTE, **SPEEDS),
}

# On the paper's workload also with nothing to wait for but what a transfer is worth.
PAPERS = {
    "off": Preemption(),
    "idle": Preemption(Mode.IDLE, **SPEEDS),
    "rotate": Preemption(Mode.ROTATE, **SPEEDS),
    "rotate after 0 s": Preemption(Mode.ROTATE, rotate=0.0, **SPEEDS),
}


def programs(lab: Lab, seed: int) -> list[Program]:
    random = Random(f"day {lab.name} {seed}")
    day = [_notebook(random) for _ in range(lab.notebooks)]
    day += [_training(random) for _ in range(2)]
    for begins in (2.5 * HOUR, 5.5 * HOUR, 8 * HOUR):
        day += [_job(random, begins + random.uniform(0, 5 * MINUTE)) for _ in range(lab.burst)]
    return sorted(day, key=lambda program: program.arrives)


def _notebook(random: Random) -> Program:
    opens = random.uniform(0, HOUR)
    closes = CLOSING - random.uniform(0, HOUR)
    return Program("notebook", opens, random.randint(10, 60) * GIB, tuple(_cells(random, closes - opens)), closes)


def _cells(random: Random, lasts: float) -> Iterator[tuple[float, float]]:
    """Sittings of some 30 minutes, of which 12 are computed, with some 90 minutes between them."""
    spent = pause = 0.0
    while spent < lasts:
        for _ in range(random.randint(4, 8)):
            computes = random.uniform(1, 3) * MINUTE
            yield pause, computes
            spent += pause + computes
            pause = random.uniform(1, 5) * MINUTE
        pause = random.uniform(45, 135) * MINUTE


def _training(random: Random) -> Program:
    arrives, lasts = random.uniform(8.5, 10.5) * HOUR, random.uniform(6, 10) * HOUR
    return Program("training", arrives, random.randint(40, 60) * GIB, ((0.0, lasts),))


def _job(random: Random, arrives: float) -> Program:
    return Program("job", arrives, random.randint(4, 16) * GIB, ((0.0, random.uniform(2, 10) * MINUTE),))


# ---- what came of it --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """Of all seeds together; seconds, unless said otherwise.

    `suspended`: mean over all containers of how long each was stalled in all; `by_kind`: the same of each kind. `days`:
    the longest stall of each day. `cells`: how long each cell of a notebook had to wait. `swaps`: out, an hour.
    `moving`: the part of the cards' time that went into transfers. `bound`: the most of its bound that any stall took.
    `finish`: mean.
    """

    suspended: float
    by_kind: dict[str, float]
    days: list[float]
    cells: list[float]
    swaps: float
    moving: float
    bound: float
    finish: float


def measure(every: Sequence[list[Program]], cards: tuple[int, ...], rule: Preemption) -> Measured:
    """Plays each of these days."""
    days = [(its, play(its, cards, rule)) for its in every]
    stalled: dict[str, list[float]] = {}
    for its, day in days:
        total = [0.0] * len(its)
        for stall in day.stalls:
            total[stall.place] += stall.seconds
        for program, each in zip(its, total, strict=True):
            stalled.setdefault(program.kind, []).append(each)
    return Measured(
        suspended=fmean(total for each in stalled.values() for total in each),
        by_kind={kind: fmean(each) for kind, each in stalled.items()},
        days=[max(stall.seconds for stall in day.stalls) for _, day in days],
        cells=[seconds for _, day in days for seconds in day.cells],
        swaps=fmean(day.outs / day.finish * HOUR for _, day in days),
        moving=fmean(day.moving / day.finish / len(cards) for _, day in days),
        bound=max(_of_bound(its, cards, rule, day) for its, day in days),
        finish=fmean(day.finish for _, day in days),
    )


def _of_bound(its: list[Program], cards: tuple[int, ...], rule: Preemption, day: Day) -> float:
    """The most of its bound that any stall took.

    What `rotate` promises (docs/deciding.md): patience, and a round for each that came before and for itself. A round
    is as long as somebody must have held, and the time in which all that the cards hold is moved out and back.
    """
    sizes = sorted(program.size for program in its)
    long = max(rule.rotate, WORTH * sum(rule.seconds(size) for size in sizes[-2:]))
    pairs = sum(cards) / sizes[0] + 1
    transfers = pairs * sum(takes(sizes[0], back=back, first=True) for back in (False, True))
    transfers += 2 * sum(takes(sizes[-1], back=back, first=True) for back in (False, True))

    def bound(stall: Stall) -> float:
        return max(PATIENCE, long) + (stall.ahead + 1) * (long + transfers + LATER)

    return max(stall.seconds / bound(stall) for stall in day.stalls)


# ---- tables -----------------------------------------------------------------------------------------------------


def tables(seeds: int) -> str:
    """Both labs and the paper's workload, under every rule."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        days = {lab: [programs(lab, seed) for seed in range(seeds)] for lab in LABS}
        its = [(days[lab], lab.cards, rule) for lab in LABS for rule in RULES.values()]
        runs = [[_paper(size, seed) for size in SHORT if size % 2 == 0 for seed in range(seeds)]]
        its += [(each, (CAPACITY,), rule) for each in runs for rule in PAPERS.values()]
        found = list(pool.map(measure, *zip(*its, strict=True)))
    parts = []
    for lab in LABS:
        parts.append(_lab(lab.name, dict(zip(RULES, found, strict=False))))
        found = found[len(RULES) :]
    parts.append(_papers(dict(zip(PAPERS, found, strict=True))))
    return f"Means over {seeds} days; seconds.\n\n" + "\n\n".join(parts)


def _paper(size: int, seed: int) -> list[Program]:
    return [Program("job", job.arrives, job.size, ((0.0, job.seconds),)) for job in paper(size, seed)]


def _lab(name: str, rows: dict[str, Measured]) -> str:
    off = rows["off"]
    kinds = list(off.by_kind)
    waits = ("longest", "most of off", "of bound", "cell: median", "p99")
    lines = [[name, "suspended", "of off", *kinds, *waits, "swaps/h", "moving"]]
    for rule, each in rows.items():
        worst = max(mine / theirs for mine, theirs in zip(each.days, off.days, strict=True))
        lines.append([
            rule, f"{each.suspended:.0f}", f"{each.suspended / off.suspended:.3f}",
            *(f"{each.by_kind[kind]:.0f}" for kind in kinds),
            f"{fmean(each.days):.0f}", f"{worst:.2f}", f"{each.bound:.2f}" if "rotate" in rule else "–",
            f"{median(each.cells):.1f}", f"{quantiles(each.cells, n=100)[-1]:.0f}",
            f"{each.swaps:.1f}", f"{each.moving:.2%}",
        ])  # fmt: skip
    return aligned(lines)


def _papers(rows: dict[str, Measured]) -> str:
    off = rows["off"]
    lines = [[f"paper, N={SHORT[0]} to {SHORT[-1]}", "finish", "of off", "suspended", "of off", "swaps/h"]]
    for rule, each in rows.items():
        lines.append([rule, f"{each.finish:.1f}", f"{each.finish / off.finish:.3f}", f"{each.suspended:.1f}",
                      f"{each.suspended / off.suspended:.3f}", f"{each.swaps:.1f}"])  # fmt: skip
    return aligned(lines)
