"""ConVGPU's workload (CLUSTER 2017) under every policy on a simulated clock: tables, figures, JSON.

python -m benchmarks.simulation [--help]
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.simulation import day, pieces, turns_mixes
from benchmarks.simulation.report import figure, tables
from benchmarks.simulation.series import ALL_POLICIES, SIZES, Series, measure
from benchmarks.simulation.workloads import CAPACITY, WORKLOADS

PAPER = "The rows paper-… are the paper's rules as it describes them; see benchmarks/simulation/literal.py."


FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--seeds", type=int, default=100, help="traces for each number of containers (100)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of containers (4 to 38)")
    parser.add_argument("--policy", action="append", choices=ALL_POLICIES, help="only this one; may be repeated")
    parser.add_argument("--workload", choices=WORKLOADS, default="paper")
    parser.add_argument("--figures", type=Path, help="draw the figures into this folder (docs/figures if not narrowed)")
    parser.add_argument("--day", action="store_true", help="instead: what giving way is worth, in a lab's day")
    parser.add_argument("--pieces", action="store_true", help="instead: moves between the cards of a host, for a week")
    parser.add_argument("--turns", action="store_true", help="instead: turns of computing, with programs that drain")
    parser.add_argument("--trace", type=int, metavar="SEED", help="print the trace of the first of --sizes as JSON")
    options = parser.parse_args(words)
    if options.seeds < 1 or min(options.sizes) < 1:
        parser.error("There must be at least one seed and one container.")
    return options


def main(words: Sequence[str] | None = None) -> None:
    """`words` are the arguments, those of the command line without any."""
    options = _options(words)
    if options.day:
        print(day.tables(options.seeds))
        return
    if options.pieces:
        print(pieces.tables(options.seeds))
        return
    if options.turns:
        print(turns_mixes.tables())
        return
    if options.trace is not None:
        jobs = WORKLOADS[options.workload](options.sizes[0], options.trace)
        _print_json({"capacity": CAPACITY, "jobs": [asdict(job) for job in jobs]})
        return
    sizes = sorted(set(options.sizes))
    series = measure(options.workload, options.policy or ALL_POLICIES, sizes, options.seeds)
    whole = options.workload == "paper" and not options.policy and sizes == list(SIZES)
    folder = options.figures or (FIGURES if whole else None)
    if folder:
        _draw(series, folder)
    if options.json:
        _print_json(series.as_json())
    else:
        print(f"Workload {series.workload}, means over {series.seeds} seeds.\n\n{tables(series)}")
        if series.workload == "paper":
            print(f"\n{PAPER}")


def _print_json(what: object) -> None:
    print(json.dumps(what, indent=1))


def _draw(series: Series, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    finish = figure(series, "Finish time of all containers (s)", "finish", bound=True)
    suspended = figure(series, "Mean suspended time of a container (s)", "suspended")
    (folder / "finish.svg").write_text(finish)
    (folder / "suspended.svg").write_text(suspended)


if __name__ == "__main__":
    main()
