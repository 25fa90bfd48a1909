"""Runs a workload under policies, at several sizes, over many seeds; gives means."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import repeat
from statistics import stdev

from benchmarks.simulation.literal import RULES
from benchmarks.simulation.published import Measured, measured
from benchmarks.simulation.simulate import Outcome, run
from benchmarks.simulation.workloads import WORKLOADS, bound
from scheduler.core.policies import POLICIES

SIZES = tuple(range(4, 39, 2))
ALL_POLICIES = (*POLICIES, *RULES)
FIELDS = ("finish", "suspended", "longest", "deadlocks")  # of Means, in the JSON


@dataclass(frozen=True, slots=True)
class Means:
    """Seconds, over the seeds whose trace came to its end; None where none did. `deadlocks` counts the others.

    `deviation` is the standard deviation of a single trace's finish: traces of one size differ much.
    """

    finish: float | None
    suspended: float | None
    longest: float | None
    deadlocks: int
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """`policies`: policy → number of containers → means. `bound`: number of containers → the mean lower bound.

    `measured`: the same of the paper's own figures, if it has them for all these sizes.
    """

    workload: str
    seeds: int
    policies: dict[str, dict[int, Means]]
    bound: dict[int, float]
    measured: dict[str, dict[int, Measured]] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        policies = {
            name: {str(size): {field: getattr(means, field) for field in FIELDS} for size, means in by_size.items()}
            for name, by_size in self.policies.items()
        }
        return {
            "policies": policies,
            "bound": {str(size): value for size, value in self.bound.items()},
            "measured": {
                policy: {str(size): asdict(times) for size, times in by_size.items()}
                for policy, by_size in self.measured.items()
            },
        }

    def overall(self, policy: str, sizes: Sequence[int]) -> tuple[float, float, float] | None:
        """Finish, suspended and longest, averaged over sizes; None if a trace at one of them ended in a deadlock."""
        columns = []
        for size in sizes:
            means = self.policies[policy][size]
            if means.deadlocks or means.finish is None or means.suspended is None or means.longest is None:
                return None
            columns.append((means.finish, means.suspended, means.longest))
        finish, suspended, longest = (sum(column) / len(columns) for column in zip(*columns, strict=True))
        return finish, suspended, longest


def measure(workload: str, policies: Iterable[str], sizes: Sequence[int], seeds: int) -> Series:
    """Runs everything, on all cores. All policies get the same traces."""
    cells = [(policy, size) for policy in policies for size in sizes]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        names, counts = ([cell[i] for cell in cells] for i in (0, 1))
        results = list(pool.map(_cell, repeat(workload), names, counts, repeat(seeds)))
    by_policy: dict[str, dict[int, Means]] = {}
    for (policy, size), means in zip(cells, results, strict=True):
        by_policy.setdefault(policy, {})[size] = means
    make = WORKLOADS[workload]
    bounds = {size: sum(bound(make(size, seed)) for seed in range(seeds)) / seeds for size in sizes}
    published = measured() if workload == "paper" else {}
    beside = {
        policy: {size: by_size[size] for size in sizes}
        for policy, by_size in published.items()
        if {policy, f"paper-{policy}"} & by_policy.keys() and by_size.keys() >= set(sizes)
    }
    return Series(workload, seeds, by_policy, bounds, beside)


def _cell(workload: str, policy: str, size: int, seeds: int) -> Means:
    make = WORKLOADS[workload]
    outcomes = [run(policy, make(size, seed), seed) for seed in range(seeds)]
    ended = [outcome for outcome in outcomes if not outcome.deadlocked]
    return Means(
        finish=_mean(ended, "finish"),
        suspended=_mean(ended, "suspended"),
        longest=_mean(ended, "longest"),
        deadlocks=len(outcomes) - len(ended),
        deviation=stdev(outcome.finish for outcome in ended) if len(ended) > 1 else None,
    )


def _mean(outcomes: Sequence[Outcome], field: str) -> float | None:
    return sum(getattr(outcome, field) for outcome in outcomes) / len(outcomes) if outcomes else None
