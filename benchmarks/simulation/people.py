"""Fair between people, in labs of our own making: a saturated week, groups, a newcomer; beside the same without it.

Everybody keeps a number of containers going: when one has ended the next is sent off. A container takes 2 to 16 GiB and
computes for half an hour in the mean, on a card of its own. *Before*: the head is whose call was due first, nobody is
capped, only idle holders go, and turns are by container.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Any
from unittest.mock import patch

from benchmarks.simulation import day, simulate
from benchmarks.simulation.lab import GIB, SPEEDS, Day, Program, Turns, play
from benchmarks.simulation.report import SHORT, aligned
from benchmarks.simulation.workloads import paper
from scheduler.core import fair
from scheduler.core.people import heads
from scheduler.core.people.tree import Tree
from scheduler.core.state import Mode, Preemption

HOUR, MINUTE, DAY = 3600.0, 60.0, 86400.0
CARDS = (80 * GIB,) * 2
IDLE = Preemption(Mode.IDLE, idle=10 * MINUTE, **SPEEDS)
SHARE = replace(IDLE, mode=Mode.SHARE)
LATER = 5 * MINUTE  # between ticks


EQUAL = Tree()


@dataclass(frozen=True, slots=True)
class Lab:
    """`people`: person → how many containers it keeps going. `gib`: from what to what they take; `small`: person → GiB.
    `begins`: person → when it comes, and `lasts` until the end: only what is after `counts` is counted."""

    people: Mapping[str, int]
    tree: Tree = EQUAL
    gib: tuple[int, int] = (2, 16)
    small: Mapping[str, int] | None = None
    begins: Mapping[str, float] | None = None
    counts: float = 0.0
    until: float = 3 * DAY


def _people(*counts: int) -> dict[str, int]:
    return {f"p{number}": count for number, count in enumerate(counts)}


def _halves(heavy: Sequence[int], light: Sequence[int], *, shares_of_heavy: float) -> Lab:
    groups = {f"p{number}": "heavy" if number < len(heavy) else "light" for number in range(len(heavy) + len(light))}
    return Lab(_people(*heavy, *light), Tree(groups, {"heavy": shares_of_heavy, "light": 3 - shares_of_heavy}))


LABS: dict[str, Lab] = {
    "week": Lab(_people(20, 12, 8, 6, 4, 3, 2, 1), until=7 * DAY),
    "week, large": Lab(_people(20, 12, 8, 6, 4, 3, 2, 1), until=7 * DAY, gib=(8, 40)),
    "groups, 2 to the heavy half": _halves((20, 12, 8, 6), (4, 3, 2, 1), shares_of_heavy=2.0),
    "groups, 2 to the light half": _halves((20, 12, 8, 6), (4, 3, 2, 1), shares_of_heavy=1.0),
    "60 small": Lab({"many": 60, **_people(3, 3, 3, 3, 3, 3, 3)}, small={"many": 2}),
    "five accounts": Lab(
        {**{f"a{number}": 4 for number in range(5)}, **_people(4, 4, 4, 4, 4, 4, 4)},
        Tree({f"a{number}": "five" for number in range(5)}, {"five": 1.0}),
    ),
    "newcomer": Lab({**_people(8, 8, 8), "new": 5}, begins={"new": 7 * DAY}, counts=7 * DAY, until=7 * DAY + 12 * HOUR),
}


def _programs(lab: Lab, seed: int) -> list[Program]:
    random = Random(f"people {seed}")

    def next_of(person: str, at: float) -> Program:
        size = (lab.small or {}).get(person) or random.randint(*lab.gib)
        computes = random.uniform(10, 52) * MINUTE
        return Program("job", at, size * GIB, ((0.0, computes),), owner=person, then=lambda now: next_of(person, now))

    begins = lab.begins or {}
    its = [next_of(person, begins.get(person, 0.0) + 1.0) for person, count in lab.people.items() for _ in range(count)]
    random.shuffle(its)
    return [replace(each, arrives=each.arrives + place) for place, each in enumerate(its)]


@contextmanager
def before() -> Iterator[None]:
    """As if all who wait were one person's."""
    with (
        patch.object(heads, "chosen_of", lambda state, gpu, calls, known: calls[0]),
        patch.object(fair, "capped_by", lambda *_: None),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Found:
    """By person, unless it says otherwise: of what was due (1 is all of it), and the mean wait for a start in seconds.

    `jobs`: ended. `moving`: the part of the cards' time that went into transfers.
    """

    held: dict[str, float]
    computed: dict[str, float]
    held_part: dict[str, float]  # of all that was held by anybody
    waits: dict[str, float]
    jobs: int
    moving: float


def lab_run(name: str, seed: int, *, is_before: bool) -> Found:
    lab = LABS[name]
    rule, turns = (IDLE, Turns.CONTAINERS) if is_before else (SHARE, Turns.PEOPLE)

    def until(time: float) -> Day:
        return play(_programs(lab, seed), CARDS, rule, turns, lab.tree, time, LATER)

    if is_before:
        with before():
            whole, early = until(lab.until), until(lab.counts) if lab.counts else Day()
    else:
        whole, early = until(lab.until), until(lab.counts) if lab.counts else Day()
    return _found(lab, whole, early)


def _found(lab: Lab, whole: Day, early: Day) -> Found:
    def since(what: str) -> dict[str, float]:
        later, sooner = getattr(whole, what), getattr(early, what)
        return {who: later[who] - sooner[who] for who in lab.people}

    held, held_due, computed, computed_due = map(since, ("held", "held_due", "computed", "computed_due"))
    return Found(
        {who: held[who] / held_due[who] for who in lab.people},
        {who: computed[who] / computed_due[who] for who in lab.people},
        {who: each / sum(held.values()) for who, each in held.items()},
        {who: _wait(whole, who) for who in lab.people},
        round(sum(whole.ended.values())),
        whole.moving / whole.finish / len(CARDS),
    )


def _wait(day: Day, who: str) -> float:
    return fmean(waits) if (waits := day.starts.get(who)) else 0.0


def jain(parts: Mapping[str, float]) -> float:
    """1 where all are equal, 1/n where one has all (Jain, Chiu and Hawe, DEC-TR-301, 1984)."""
    return sum(parts.values()) ** 2 / (len(parts) * sum(each**2 for each in parts.values()))


# ---- the notebooks' day, and the paper's workload by several people ---------------------------------------------


def day_run(which: int, seed: int, *, is_before: bool) -> dict[str, float]:
    """Of a lab's day in which every notebook, burst and training is somebody's: seconds stalled, by kind."""
    lab = day.LABS[which]
    bursts = 0
    its = []
    for place, program in enumerate(day.programs(lab, seed)):
        bursts += program.kind == "job"
        owner = f"b{(bursts - 1) // lab.burst}" if program.kind == "job" else f"{program.kind}{place}"
        its.append(replace(program, owner=owner))
    if is_before:
        with before():
            return day.measure([its], lab.cards, IDLE).by_kind
    return day.measure([its], lab.cards, SHARE).by_kind


def paper_run(people: int, seed: int, *, is_before: bool) -> tuple[float, float, float]:
    """Means over N = 18 to 38: finish, suspended, longest."""

    def outcomes() -> list[simulate.Outcome]:
        found = []
        for size in SHORT[::2]:
            random = Random(f"owners {size} {seed}")
            jobs = [replace(job, owner=f"p{random.randrange(people)}") for job in paper(size, seed)]
            found.append(simulate.run("fair", jobs, seed))
        return found

    if is_before:
        with before():
            its = outcomes()
    else:
        its = outcomes()
    return fmean(o.finish for o in its), fmean(o.suspended for o in its), fmean(o.longest for o in its)


# ---- tables -----------------------------------------------------------------------------------------------------


def tables(seeds: int) -> str:
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs: dict[tuple[Any, ...], Any] = {}
        for is_before in (True, False):
            for name in LABS:
                jobs["lab", name, is_before] = [
                    pool.submit(lab_run, name, seed, is_before=is_before) for seed in range(seeds)
                ]
            for which in range(len(day.LABS)):
                jobs["day", which, is_before] = [
                    pool.submit(day_run, which, seed, is_before=is_before) for seed in range(seeds)
                ]
            for people in (1, 4, 12):
                jobs["paper", people, is_before] = [
                    pool.submit(paper_run, people, seed, is_before=is_before) for seed in range(seeds)
                ]
        found = {key: [each.result() for each in its] for key, its in jobs.items()}
    return f"Means over {seeds} seeds.\n\n" + "\n\n".join([_labs(found), _days(found), _papers(found)])


def _labs(found: Mapping[tuple[Any, ...], list[Found]]) -> str:
    rows = [["", "J of VRAM", "J of GPU", "first: VRAM, GPU of due", "last: VRAM, GPU of due", "last: part of VRAM",
             "last: wait (h)", "mean wait (h)", "jobs", "moving"]]  # fmt: skip
    for name, lab in LABS.items():
        first, *_, last = lab.people
        for is_before in (True, False):
            its = found["lab", name, is_before]
            group = [who for who in lab.people if lab.tree.parent(who) == lab.tree.parent(first) != ""] or [first]
            rows.append([
                f"{name}{', before' * is_before}",
                f"{fmean(jain(each.held) for each in its):.3f}", f"{fmean(jain(each.computed) for each in its):.3f}",
                f"{fmean(each.held[who] for each in its for who in group):.2f} "
                f"{fmean(each.computed[who] for each in its for who in group):.2f}",
                f"{fmean(each.held[last] for each in its):.2f} {fmean(each.computed[last] for each in its):.2f}",
                f"{fmean(each.held_part[last] for each in its):.3f}",
                f"{fmean(each.waits[last] for each in its) / HOUR:.1f}",
                f"{fmean(fmean(each.waits.values()) for each in its) / HOUR:.1f}",
                f"{fmean(each.jobs for each in its):.0f}", f"{fmean(each.moving for each in its):.2%}",
            ])  # fmt: skip
    return aligned(rows)


def _days(found: Mapping[tuple[Any, ...], list[Any]]) -> str:
    rows = [["a day", "notebooks (s)", "jobs", "trainings"]]
    for which, lab in enumerate(day.LABS):
        for is_before in (True, False):
            its = found["day", which, is_before]
            kinds = (fmean(each[kind] for each in its) for kind in ("notebook", "job", "training"))
            rows.append([f"{lab.name}{', before' * is_before}", *(f"{each:.0f}" for each in kinds)])
    return aligned(rows)


def _papers(found: Mapping[tuple[Any, ...], list[Any]]) -> str:
    rows = [["paper, N=18 to 38", "finish", "suspended", "longest", "of before"]]
    for people in (1, 4, 12):
        was, now = (
            [fmean(each[i] for each in found["paper", people, is_before]) for i in range(3)]
            for is_before in (True, False)
        )
        ratio = " ".join(f"{new / old:.4f}" for new, old in zip(now, was, strict=True))
        rows.append([f"{people} people", *(f"{each:.2f}" for each in now), ratio])
    return aligned(rows)
