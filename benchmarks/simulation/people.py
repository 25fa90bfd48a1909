"""Fair between people, in labs of our own making: a saturated week, groups, a newcomer; beside the same without it.

Everybody keeps a number of containers going: when one has ended the next is sent off. A container takes 2 to 16 GiB and
computes for half an hour in the mean, on a card of its own. Not everybody's containers can hold what is due: `most`
says what the index would be if all had as much of it as theirs take, and `least` what somebody has that no container of
others would have fitted into. In *week, large* and the labs that are called *saturated* everybody's can. *Before*: the
head is whose call was due first, nobody is capped, only idle holders go, and turns are by container.

python -m benchmarks.simulation.people [--help]     (needs Python's standard library only)
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any
from unittest.mock import patch

from benchmarks.simulation import day, simulate
from benchmarks.simulation.lab import Turns, play
from benchmarks.simulation.programs import GIB, SPEEDS, Program
from benchmarks.simulation.report import SHORT, aligned
from benchmarks.simulation.workloads import paper
from scheduler.core import fair
from scheduler.core.people import heads, sharing
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
    "groups, 2 to the light half, saturated": _halves((20, 12, 8, 6), (8, 6, 5, 4), shares_of_heavy=1.0),
    "60 small": Lab({"many": 60, **_people(3, 3, 3, 3, 3, 3, 3)}, small={"many": 2}),
    "60 small, saturated": Lab({"many": 60, **_people(8, 8, 8, 8, 8, 8, 8)}, small={"many": 2}, until=2 * DAY),
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
        patch.object(sharing, "gives_place_to", lambda *_: False),
        patch.object(fair, "capped_by", lambda *_: None),
    ):
        yield


@dataclass(frozen=True, slots=True)
class Found:
    """By person, unless it says otherwise: of what was due (1 is all of it), and the mean wait for a start in seconds.

    `wanted`: the VRAM, of what was due if nobody is due more than its containers take; `most`: that, of what was due.
    `sides`: the VRAM by group and person without one; `least`: the same less what others could have had of it at each
    moment. `jobs`: ended; `begun`: parts of others. `moving`: the part of the cards' time that went into transfers.
    """

    held: dict[str, float]
    wanted: dict[str, float]
    most: dict[str, float]
    computed: dict[str, float]
    sides: dict[str, float]
    held_part: dict[str, float]  # of all that was held by anybody
    waits: dict[str, float]
    jobs: int
    moving: float
    least: dict[str, float] = field(default_factory=dict)
    begun: float = 0.0


def lab_run(name: str, seed: int, *, is_before: bool) -> Found:
    lab = LABS[name]
    rule, turns = (IDLE, Turns.CONTAINERS) if is_before else (SHARE, Turns.PEOPLE)
    with before() if is_before else nullcontext():
        day = play(_programs(lab, seed), CARDS, rule, turns, lab.tree, lab.until, LATER, lab.counts)
    sides = {who: lab.tree.parent(who) or who for who in lab.people}
    return Found(
        _parts(day.held, day.held_due, {who: who for who in lab.people}),
        _parts(day.held, day.wanted_due, {who: who for who in lab.people}),
        _parts(day.wanted_due, day.held_due, {who: who for who in lab.people}),
        _parts(day.computed, day.computed_due, {who: who for who in lab.people}),
        _parts(day.held, day.held_due, sides),
        {who: day.held[who] / sum(day.held.values()) for who in lab.people},
        {who: fmean(day.starts.get(who) or [0.0]) for who in lab.people},
        round(sum(day.ended.values())),
        day.moving / day.finish / len(CARDS),
        {side: its / sum(day.held_due[who] for who in sides if sides[who] == side) for side, its in day.least.items()},
        day.begun,
    )


def _parts(had: Mapping[str, float], due: Mapping[str, float], sides: Mapping[str, str]) -> dict[str, float]:
    sums = {side: [0.0, 0.0] for side in sides.values()}
    for who, side in sides.items():
        sums[side][0] += had[who]
        sums[side][1] += due[who]
    return {side: its[0] / its[1] for side, its in sums.items()}


def jain(parts: Mapping[str, float]) -> float:
    """1 where all are equal, 1/n where one has all (Jain, Chiu and Hawe, DEC-TR-301, 1984)."""
    return sum(parts.values()) ** 2 / (len(parts) * sum(each**2 for each in parts.values()))


# ---- the notebooks' day, and the paper's workload by several people ---------------------------------------------


def day_run(which: str, seed: int, *, is_before: bool) -> dict[str, float]:
    """Of a lab's day in which every notebook, burst and training is somebody's: seconds stalled, by kind."""
    lab = next(each for each in day.LABS if each.name == which)
    bursts = 0
    its = []
    for place, program in enumerate(day.programs(lab, seed)):
        bursts += program.kind == "job"
        owner = f"b{(bursts - 1) // lab.burst}" if program.kind == "job" else f"{program.kind}{place}"
        its.append(replace(program, owner=owner))
    with before() if is_before else nullcontext():
        return day.measure([its], lab.cards, IDLE if is_before else SHARE).by_kind


OWNERS = ("1", "4", "12")


def paper_run(owners: str, seed: int, *, is_before: bool) -> dict[str, float]:
    """Means over N = 18 to 38: finish, suspended, longest."""
    found = []
    with before() if is_before else nullcontext():
        for size in SHORT[::2]:
            random = Random(f"owners {size} {seed}")
            jobs = [replace(job, owner=f"p{random.randrange(int(owners))}") for job in paper(size, seed)]
            found.append(simulate.run("fair", jobs, seed))
    return {what: fmean(getattr(each, what) for each in found) for what in ("finish", "suspended", "longest")}


# ---- tables -----------------------------------------------------------------------------------------------------


Cells = dict[tuple[str, str, bool], list[Any]]  # (what, which, before) → what was found, seed by seed
Seed = dict[str, dict[str, Any]]  # "what/which/before" → the fields of what was found; as it stands in a file

RUNS: dict[tuple[str, str], Callable[..., Any]] = {
    **{("lab_run", which): lab_run for which in LABS},
    **{("day_run", lab.name): day_run for lab in day.LABS},
    **{("paper_run", several): paper_run for several in OWNERS},
}


def measure(seeds: Iterable[int], processes: int | None = None) -> Iterator[tuple[int, Seed]]:
    """Seed by seed, each as soon as it and those before it are done. One process for each processor, if it is not
    said."""
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        jobs = {
            seed: {
                f"{what}/{which}/{'before' * is_before}": pool.submit(run, which, seed, is_before=is_before)
                for (what, which), run in RUNS.items()
                for is_before in (True, False)
            }
            for seed in seeds
        }
        for seed, its in jobs.items():
            yield seed, {key: _fields(each.result()) for key, each in its.items()}


def _fields(found: Found | dict[str, float]) -> dict[str, Any]:
    return asdict(found) if isinstance(found, Found) else found


def write(seeds: Iterable[int], processes: int | None, folder: Path) -> None:
    """A file for each seed, so that what is done stays where the rest is cut off. Seeds that have one are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, found in measure((seed for seed in seeds if not _file(folder, seed).exists()), processes):
        unfinished = folder / f"{seed}.unfinished"
        unfinished.write_text(json.dumps(found))
        unfinished.rename(_file(folder, seed))


def _file(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed:03}.json"


def read(folder: Path) -> list[Seed]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("seed-*.json"))]


def _cells(seeds: Sequence[Seed]) -> Cells:
    cells: Cells = {}
    for found in seeds:
        for key, each in found.items():
            what, which, is_before = key.split("/")
            cells.setdefault((what, which, bool(is_before)), []).append(Found(**each) if what == "lab_run" else each)
    return cells


def tables(seeds: Sequence[Seed]) -> str:
    found = _cells(seeds)
    return f"Means over {len(seeds)} seeds.\n\n" + "\n\n".join(
        [_bars(found), _labs(found), _days(found), _papers(found)]
    )


def as_json(seeds: Sequence[Seed]) -> dict[str, Any]:
    """The means, and each bar of issue 33 beside what was found."""
    found = _cells(seeds)
    means = {
        f"{what[:-4]}: {which}{', before' * is_before}": _means([_figures(each) for each in its])
        for (what, which, is_before), its in found.items()
    }
    return {"seeds": len(seeds), "bars": bars(found), "means": means}


def _figures(found: Any) -> dict[str, float]:
    if not isinstance(found, Found):
        return dict(found)
    figures = {"J of VRAM": jain(found.held), "J of VRAM wanted": jain(found.wanted), "J of GPU": jain(found.computed)}
    figures |= {"J of VRAM at most": jain(found.most), "jobs and parts": found.jobs + found.begun}
    figures |= {"J of VRAM by side": jain(found.sides), "jobs": float(found.jobs), "moving": found.moving}
    for what in ("held", "wanted", "computed", "sides", "held_part", "waits", "least"):
        figures |= {f"{what} {who}": each for who, each in getattr(found, what).items()}
    return figures


def _means(its: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(fmean(each[name] for each in its), 4) for name in its[0]}


def bars(found: Cells) -> dict[str, dict[str, float | bool | None]]:
    """What it must show → the figure, its bar, whether it is reached, and how near to the bar any rule could have come
    in these runs."""
    means = {key: _means([_figures(each) for each in its]) for key, its in found.items()}

    def lab(name: str, what: str, *, is_before: bool = False) -> float:
        return means["lab_run", name, is_before][what]

    def to_before(run: str, which: str, what: str) -> float:
        return means[run, which, False][what] / (means[run, which, True][what] or 1.0)

    held = ("J of VRAM wanted", "J of VRAM")
    bounds = {f"{name}, J of VRAM": lab(name, "J of VRAM at most") for name in LABS}
    small = [each for each in LABS if each.startswith("60")]
    for name, side in (*((each, "many") for each in small), ("five accounts", "five")):
        if f"least {side}" in means["lab_run", name, False]:
            bounds[f"{name}, VRAM of due"] = lab(name, f"least {side}")
    least: dict[str, tuple[float, float]] = {}
    highest: dict[str, tuple[float, float]] = {}
    for name in ("week", "week, large"):
        least |= {f"{name}, {what}": (lab(name, what), 0.99) for what in held}
        least[f"{name}, J of GPU"] = (lab(name, "J of GPU"), 0.97)
        least[f"{name}, jobs of before"] = (to_before("lab_run", name, "jobs"), 0.98)
        bounds[f"{name}, jobs of before"] = to_before("lab_run", name, "jobs and parts")
        highest[f"{name}, wait of who has 1, of before"] = (to_before("lab_run", name, "waits p7"), 0.4)
        highest[f"{name}, moving"] = (lab(name, "moving"), 0.005)
    for name in (each for each in LABS if each.startswith("groups")):
        least |= {f"{name}, {what}": (lab(name, what), 0.95) for what in (*held, "J of VRAM by side", "J of GPU")}
    for name in small:
        highest[f"{name}, VRAM of due and wanted"] = (lab(name, "wanted many"), 1.1)
        highest[f"{name}, VRAM of due"] = (lab(name, "held many"), 1.1)
        highest[f"{name}, GPU of due"] = (lab(name, "computed many"), 1.4)
    highest["five accounts, VRAM of due"] = (lab("five accounts", "sides five"), 1.2)
    least["newcomer, part of VRAM"] = (lab("newcomer", "held_part new"), 0.20)
    highest["newcomer, part of VRAM, most"] = (lab("newcomer", "held_part new"), 0.33)
    highest |= {f"day, {each.name}, notebooks of before": (to_before("day_run", each.name, "notebook"), 1.02)
             for each in day.LABS}  # fmt: skip
    highest |= {f"paper, {several} owners, {what} of before": (to_before("paper_run", several, what), 1.005)
             for several in OWNERS for what in ("finish", "suspended", "longest")}  # fmt: skip
    rows = [(name, figure, bar, figure >= bar) for name, (figure, bar) in least.items()]
    rows += [(name, figure, bar, figure <= bar) for name, (figure, bar) in highest.items()]
    return {
        name: {"figure": round(figure, 4), "bar": bar, "reached": well, "bound": bounds.get(name)}
        for name, figure, bar, well in rows
    }


def _bars(found: Cells) -> str:
    rows = [["", "figure", "bar", "can be had", ""]]
    for name, its in bars(found).items():
        bound = "" if its["bound"] is None else f"{its['bound']:.3f}"
        rows.append([name, f"{its['figure']:.3f}", f"{its['bar']:.3f}", bound, "" if its["reached"] else "missed"])
    return aligned(rows)


def _labs(found: Cells) -> str:
    rows = [["", "J of VRAM", "at most", "wanted", "by side", "J of GPU", "first: VRAM, GPU of due",
             "last: VRAM, GPU of due", "last: part of VRAM",
             "last: wait (h)", "mean wait (h)", "jobs, with parts of others", "moving"]]  # fmt: skip
    for name, lab in LABS.items():
        first, *_, last = lab.people
        for is_before in (True, False):
            its = found["lab_run", name, is_before]
            group = [who for who in lab.people if lab.tree.parent(who) == lab.tree.parent(first) != ""] or [first]
            rows.append([
                f"{name}{', before' * is_before}",
                *(f"{fmean(_figures(each)[f'J of {what}'] for each in its):.3f}"
                  for what in ("VRAM", "VRAM at most", "VRAM wanted", "VRAM by side", "GPU")),
                f"{fmean(each.held[who] for each in its for who in group):.2f} "
                f"{fmean(each.computed[who] for each in its for who in group):.2f}",
                f"{fmean(each.held[last] for each in its):.2f} {fmean(each.computed[last] for each in its):.2f}",
                f"{fmean(each.held_part[last] for each in its):.3f}",
                f"{fmean(each.waits[last] for each in its) / HOUR:.1f}",
                f"{fmean(fmean(each.waits.values()) for each in its) / HOUR:.1f}",
                f"{fmean(each.jobs for each in its):.0f} {fmean(each.jobs + each.begun for each in its):.0f}",
                f"{fmean(each.moving for each in its):.2%}",
            ])  # fmt: skip
    return aligned(rows)


def _days(found: Cells) -> str:
    rows = [["a day", "notebooks (s)", "jobs", "trainings"]]
    for lab in day.LABS:
        for is_before in (True, False):
            its = found["day_run", lab.name, is_before]
            kinds = (fmean(each[kind] for each in its) for kind in ("notebook", "job", "training"))
            rows.append([f"{lab.name}{', before' * is_before}", *(f"{each:.0f}" for each in kinds)])
    return aligned(rows)


def _papers(found: Cells) -> str:
    rows = [["paper, N=18 to 38", "finish", "suspended", "longest", "of before"]]
    for people in OWNERS:
        was, now = (_means(found["paper_run", people, is_before]).values() for is_before in (True, False))
        ratio = " ".join(f"{new / old:.4f}" for new, old in zip(now, was, strict=True))
        rows.append([f"{people} people", *(f"{each:.2f}" for each in now), ratio])
    return aligned(rows)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation.people", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (100)")
    parser.add_argument("--processes", type=int, help="at a time (one for each processor)")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="write a file for each seed, and no tables")
    parser.add_argument("--out-of", type=Path, metavar="FOLDER", help="make the tables of such files")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(words)
    seeds = range(options.first, options.first + options.seeds)
    if options.into:
        write(seeds, options.processes, options.into)
        return
    found = read(options.out_of) if options.out_of else [each for _, each in measure(seeds, options.processes)]
    print(json.dumps(as_json(found), indent=1) if options.json else tables(found))


if __name__ == "__main__":
    main()
