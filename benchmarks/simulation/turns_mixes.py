"""Mixes of programs that take turns, and the tables of docs/turns.md about them."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from statistics import median, quantiles

from benchmarks.simulation.report import aligned
from benchmarks.simulation.turns import WINDOW, Program, farthest, play, shares
from scheduler.core.people.tree import Tree

GEMM, TRAINING, AHEAD = 0.015, 0.04, 0.8  # seconds of draining
NOTEBOOK = Program("notebook", drain=0.002, busy=0.05, every=1.03)  # at another time of the cycle each time
BUSY = Program("busy", drain=0.01, busy=0.4, every=2.03)

MIXES: dict[str, list[Program]] = {
    "GEMM 75/25": [Program("a", GEMM, 75), Program("b", GEMM, 25)],
    "GEMM 90/10": [Program("a", GEMM, 90), Program("b", GEMM, 10)],
    "GEMM 50/50": [Program("a", GEMM), Program("b", GEMM)],
    "trainings 50/30/20": [Program("cnn", 0.02, 50), Program("transformer", TRAINING, 30), Program("ahead", 0.06, 20)],
    "50/50, one far ahead": [Program("a", TRAINING), Program("ahead", AHEAD)],
    "eight": [Program(name, TRAINING) for name in "abcdefgh"],
    "training and notebook": [Program("training", TRAINING), NOTEBOOK],
    "300/100 and notebook": [Program("a", TRAINING, 300), Program("b", TRAINING), NOTEBOOK],
    "50/50 and a busy one": [Program("a", TRAINING), Program("b", TRAINING), BUSY],
    "50/50, one sleeps": [Program("a", TRAINING), Program("sleeps", TRAINING, spins=False)],
    "limit 30, alone": [Program("a", GEMM, limit=30)],
    "limit 30, not alone": [Program("a", GEMM, limit=30), Program("b", GEMM)],
    "two cards": [
        Program("wide", TRAINING, gpus=("g", "h")),
        Program("left", TRAINING, gpus=("g",)),
        Program("right", TRAINING, gpus=("h",)),
    ],
    "two cards, limit 20": [
        Program("wide", TRAINING, gpus=("g", "h"), limit=20),
        Program("left", TRAINING, gpus=("g",)),
        Program("right", TRAINING, gpus=("h",)),
    ],
}
CYCLES = (0.2, 1.0, 3.0)


def of(owner: str, count: int, drain: float, lives: float = inf) -> list[Program]:
    return [Program(f"{owner}{place}", drain, owner=owner, lives=lives) for place in range(count)]


LABS = Tree(groups={"ada": "x", "bob": "x", **dict.fromkeys("vwxyz", "y")}, shares={"x": 2.0, "y": 1.0})
PEOPLE: dict[str, tuple[Tree, list[Program]]] = {
    "20 of one, 1 of another": (Tree(), of("ada", 20, GEMM) + of("bob", 1, GEMM)),
    "10 trainings of one, 1 of another": (Tree(), of("ada", 10, TRAINING) + of("bob", 1, TRAINING)),
    "groups 2:1, of two and five": (LABS, [each for name in (*LABS.groups,) for each in of(name, 1, GEMM)]),
    "8 of one that live for 1 s of work": (Tree(), of("ada", 8, GEMM, 1.0) + of("bob", 1, GEMM) + of("cem", 1, GEMM)),
    "the same, 0.2 s": (Tree(), of("ada", 8, 0.02, 0.2) + of("bob", 1, 0.02) + of("cem", 1, 0.02)),
}


def tables(seconds: float = 120.0) -> str:
    """Every mix at every cycle: shares, the farthest from what was due in any 10 s, work, stops, bursts."""
    rows = [["", "cycle", "shares", "off in 10 s", "work", "stops/s", "bursts: median", "p99"]]
    for name, programs in MIXES.items():
        for cycle in CYCLES:
            played = play(programs, seconds, cycle)
            parts = " ".join(f"{share:.1%}" for share in shares(played, WINDOW).values())
            bursts = [burst for its in played.bursts.values() for burst in its]
            rows.append([
                name, f"{cycle:g} s", parts, f"{farthest(played):.1%}", f"{sum(played.done.values()) / seconds:.1%}",
                f"{played.stops / seconds:.1f}", f"{median(bursts) * 1000:.0f} ms" if bursts else "–",
                f"{quantiles(bursts, n=100)[-1] * 1000:.0f} ms" if bursts else "–",
            ])  # fmt: skip
    for name, (tree, programs) in PEOPLE.items():
        played, at_once = play(programs, seconds, tree=tree), play(_of_one(programs), seconds)
        by_owner = people(programs, shares(played, WINDOW))
        parts = " ".join(f"{owner} {share:.1%}" for owner, share in by_owner.items())
        work = "/".join(f"{sum(each.done.values()) / seconds:.1%}" for each in (played, at_once))
        rows.append([name, "1 s", parts, "", work, f"{played.stops / seconds:.1f}", "", ""])
    return aligned(rows)


def people(programs: Sequence[Program], had: dict[str, float]) -> dict[str, float]:
    """Each person's part."""
    return {
        owner: sum(had[p.name] for p in programs if p.owner == owner) for owner in {p.owner: None for p in programs}
    }


def _of_one(programs: Sequence[Program]) -> list[Program]:
    """The same containers, all of one person: their work shows what dividing by person costs."""
    return [replace(each, owner="") for each in programs]
