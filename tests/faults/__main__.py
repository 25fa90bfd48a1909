"""python -m tests.faults: see the package."""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.faults import jobs, lines
from tests.faults.kinds import KILLS, TROUBLES

Task, Result = dict[str, Any], dict[str, Any]
ALL = ",".join(lines.PLAYS)


def main() -> int:
    options = _options()
    home = Path(tempfile.mkdtemp(prefix="faults-"))
    until = time.monotonic() + options.minutes * 60
    words = [options.engine, options.database, *(["redis"] if options.redis else [])]
    words += ["small"] if options.what == "storm" else []
    report = Report(options.out or Path(tempfile.mkdtemp(prefix="faults-out-")))

    def play(tasks: list[Task], ground: str = "first") -> list[tuple[Task, Result]]:
        played = []
        for task in tasks:
            task["keep"] = str(report.folder / task["name"].replace("/", "."))
        report.planned += len(tasks)
        for task, result in jobs.play(tasks, home / ground, words, options.jobs, until):
            report.tell(task, result)
            played.append((task, result))
        return played

    match options.what:
        case "lines":
            played = play(_lines(options, home, words, report))
            if options.deaths > 1:
                play(_one_by_one(played), "second")
        case "storm":
            play(_storms(options))
        case "soak":
            play([{"kind": "soak", "name": f"soak {options.seed}", "seed": options.seed, "hours": options.hours,
                   "seconds": 150 * options.hours}])  # fmt: skip
    shutil.rmtree(home, ignore_errors=True)
    return report.end()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("what", choices=["lines", "storm", "soak"])
    parser.add_argument("--engine", choices=["process", "docker"], default="process")
    parser.add_argument(
        "--database", choices=["sqlite", "owned", "postgres"], default="sqlite",
        help="owned: an SQLite file of the web user's, which root opens by a helper.",
    )  # fmt: skip
    parser.add_argument("--redis", action="store_true", help="Hints by a Redis of its own, as in production.")
    parser.add_argument("--jobs", type=int, default=1, help="Rounds at once, each on a ground of its own.")
    parser.add_argument("--minutes", type=float, default=1e6, help="After so long no round is begun any more.")
    parser.add_argument("--out", type=Path, help="A folder for results.jsonl and what wrong rounds left.")
    parser.add_argument("--count", type=int, default=0, help="Lines to die before; 0: all.")
    parser.add_argument("--seed", type=int, default=1, help="Which lines, or the first storm's.")
    parser.add_argument(
        "--deaths", type=int, default=1, help="Lines to die before in one round; who dies at none is tried alone."
    )
    parser.add_argument("--only", default="", help="Lines of these files, or these lines (file:line), with commas.")
    parser.add_argument(
        "--but", type=Path, help="A results.jsonl: lines that were died before there, and rightly, are not again."
    )
    parser.add_argument("--first", default="", help="Lines that none but these plays, or later ones, come by go first.")
    parser.add_argument("--plays", default=ALL)
    parser.add_argument("--storms", type=int, default=1, help="So many, each with the next seed.")
    parser.add_argument("--harm", default="all", help="What happens in a storm (see harm.py), with commas; or `kills`.")
    parser.add_argument("--seconds", type=float, default=60.0, help="How long a storm rages.")
    parser.add_argument("--hours", type=float, default=24.0, help="Of a soak; an hour takes two and a half minutes.")
    return parser.parse_args()


def _lines(options: argparse.Namespace, home: Path, words: list[str], report: "Report") -> list[Task]:
    """Plays undisturbed first, to see which lines there are to die before."""
    found = [place for place in lines.places(options.engine) if place.startswith(tuple(options.only.split(",")))]
    files = sorted({place.split(":")[0] for place in found})
    plays = [play for play in options.plays.split(",") if play]
    if options.plays == ALL:
        plays = lines.plays(options.engine, options.database)
    tasks = [
        {
            "kind": "record",
            "name": f"undisturbed {play}",
            "play": play,
            "files": files,
            "keep": str(report.folder / play),
        }
        for play in plays
    ]
    seen: dict[str, set[str]] = {}
    for task, result in jobs.play(tasks, home / "record", words, options.jobs, time.monotonic() + 600):
        report.tell(task, result)
        seen[task["play"]] = set(result.get("seen", ()))
    plan = lines.plan({play: seen[play] for play in plays}, found)
    report.not_come_by([place for place in found if place not in plan])
    print(f"{len(found)} lines act, {len(plan)} of them in these plays", flush=True)
    done = _died_rightly(options.but) if options.but else set()
    chosen = [place for place in plan if place not in done]
    # In no order, so that a run that is cut short has seen something of everything.
    random.Random(options.seed).shuffle(chosen)
    chosen.sort(key=lambda place: plan[place] not in options.first.split(","))
    return _rounds(chosen[: options.count or len(chosen)], plan, options.deaths)


def _rounds(places: list[str], plan: dict[str, str], deaths: int) -> list[Task]:
    """So many lines of one play in each, but for those of keepers and workers: no play bears two deaths of theirs."""
    unfinished: dict[str, Task] = {}
    tasks = []
    for place in places:
        play, alone = plan[place], place.startswith((*lines.IN_KEEPERS, lines.WORKER))
        task = None if alone else unfinished.get(play)
        if task is None or len(task["places"]) == deaths:
            task = {"kind": "line", "name": place, "places": [], "play": play}
            tasks.append(task)
            if not alone:
                unfinished[play] = task
        task["places"].append(place)
    return tasks


def _one_by_one(played: list[tuple[Task, Result]]) -> list[Task]:
    """Again, each alone: lines that nobody came by for the deaths before, and those of wrong rounds, to tell which."""
    return [
        {"kind": "line", "name": f"{place} alone", "places": [place], "play": task["play"]}
        for task, result in played
        if len(task["places"]) > 1
        for place in task["places"]
        if result["wrong"] or place not in result["died"]
    ]


def _died_rightly(results: Path) -> set[str]:
    reported = [json.loads(line) for line in results.read_text().splitlines()]
    return {place for each in reported if each["kind"] == "line" and not each["wrong"] for place in each["died"]}


def _storms(options: argparse.Namespace) -> list[Task]:
    harm = {"all": (*KILLS, *TROUBLES), "kills": KILLS}.get(options.harm) or options.harm.split(",")
    return [
        {"kind": "storm", "name": f"storm {seed}", "seed": seed, "seconds": options.seconds, "harm": harm}
        for seed in range(options.seed, options.seed + options.storms)
    ]  # fmt: skip


class Report:
    """Tells each result at once, all of them in `folder`/results.jsonl, and their sum at the end."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._begun = folder, time.monotonic()
        self._results = (folder / "results.jsonl").open("w")
        self.planned = self._reported = self._wrong = 0
        self._sums: Counter[str] = Counter()
        self._died: set[str] = set()

    def tell(self, task: Task, result: Result) -> None:
        kept = {key: value for key, value in {**task, **result}.items() if key not in ("files", "keep", "seen")}
        self._results.write(json.dumps(kept) + "\n")
        self._results.flush()
        said = {key: value for key, value in result.items() if key not in ("wrong", "seen", "died", "table")}
        died, lived = result.get("died", []), set(task.get("places", ())) - set(result.get("died", ()))
        fate = f"died {' '.join(died)}" + f", lived {' '.join(sorted(lived))}" * bool(lived) if died or lived else ""
        print(f"{task['name']} {fate} {said}", *result["wrong"], sep="\n    ", flush=True)
        print(result.get("table", ""), end="", flush=True)
        if task["kind"] != "record":
            self._reported += 1
            self._died.update(died)
            self._sums.update({"died": len(died)} if died else {})
            self._sums.update({f"{who} killed": times for who, times in result.get("killed", {}).items()})
            self._sums.update(result.get("troubles", {}))
        self._wrong += bool(result["wrong"])

    def not_come_by(self, places: list[str]) -> None:
        """Each with its text and why, in not-come-by.txt."""
        why = {place: lines.why_not(place) for place in places}
        text = [f"{place}: {why[place]}: {lines.text(place)}" for place in places]
        (self.folder / "not-come-by.txt").write_text("\n".join(text))
        print("not come by:", dict(Counter(why.values())), flush=True)

    def end(self) -> int:
        took = time.monotonic() - self._begun
        rounds = f"{self._reported} of {self.planned} rounds"
        print(f"{rounds}, {dict(self._sums)}, {took:.0f} s, {self._wrong} with something wrong")
        if self._died:
            print(f"{len(self._died)} lines were died before")
        if self._reported < self.planned:
            print(f"{self.planned - self._reported} were not begun: the time was over")
        print(f"results: {self.folder}")
        self._results.close()
        return min(self._wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
