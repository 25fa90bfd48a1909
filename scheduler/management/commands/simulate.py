"""The paper's experiment under every policy: tables, figures, JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from scheduler.experiment import day, turns
from scheduler.experiment.report import figure, tables
from scheduler.experiment.series import ALL_POLICIES, SIZES, measure
from scheduler.experiment.workloads import CAPACITY, WORKLOADS

PAPER = "The rows paper-… are the paper's rules as it describes them; see scheduler/experiment/literal.py."


class Command(BaseCommand):
    help = "Runs the workload of ConVGPU (CLUSTER 2017) under every policy on a simulated clock."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
        parser.add_argument("--seeds", type=int, default=100, help="traces for each number of containers (100)")
        parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of containers (4 to 38)")
        parser.add_argument("--policy", action="append", choices=ALL_POLICIES, help="only this one; may be repeated")
        parser.add_argument("--workload", choices=WORKLOADS, default="paper")
        parser.add_argument(
            "--figures", type=Path, help="draw the figures into this folder (docs/figures if not narrowed)"
        )
        parser.add_argument("--day", action="store_true", help="instead: what giving way is worth, in a lab's day")
        parser.add_argument(
            "--turns", action="store_true", help="instead: turns of computing, with programs that drain"
        )
        parser.add_argument("--trace", type=int, metavar="SEED", help="print the trace of the first of --sizes as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["seeds"] < 1 or min(options["sizes"]) < 1:
            raise CommandError("There must be at least one seed and one container.")
        if options["day"]:
            self.stdout.write(day.tables(options["seeds"]))
            return
        if options["turns"]:
            self.stdout.write(turns.tables())
            return
        if options["trace"] is not None:
            jobs = WORKLOADS[options["workload"]](options["sizes"][0], options["trace"])
            self._print_json({"capacity": CAPACITY, "jobs": [asdict(job) for job in jobs]})
            return
        sizes = sorted(set(options["sizes"]))
        series = measure(options["workload"], options["policy"] or ALL_POLICIES, sizes, options["seeds"])
        whole = options["workload"] == "paper" and not options["policy"] and sizes == list(SIZES)
        folder = options["figures"] or (settings.BASE_DIR / "docs" / "figures" if whole else None)
        if folder:
            self._draw(series, folder)
        if options["json"]:
            self._print_json(series.as_json())
        else:
            self.stdout.write(f"Workload {series.workload}, means over {series.seeds} seeds.\n\n{tables(series)}")
            if series.workload == "paper":
                self.stdout.write(f"\n{PAPER}")

    def _print_json(self, what: object) -> None:
        self.stdout.write(json.dumps(what, indent=1))

    def _draw(self, series: Any, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        finish = figure(series, "Finish time of all containers (s)", "finish", bound=True)
        suspended = figure(series, "Mean suspended time of a container (s)", "suspended")
        (folder / "finish.svg").write_text(finish)
        (folder / "suspended.svg").write_text(suspended)
