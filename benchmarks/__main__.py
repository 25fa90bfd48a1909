"""`make bench`: every benchmark here and in shim/, one after the other. `python -m benchmarks.NAME` runs one.

    python -m benchmarks before COMMIT [TURNS [ROUNDS [network]]]      (root; a dockerd of its own)

plays the launch and the write path before and after, in turns: the commit has a worktree and native parts of its own,
both run with this Python and its packages. Each turn runs `docker_launch` with so many ROUNDS, and `write_path`, in
each tree, the first of them changing from turn to turn. Told are the medians over the turns, and what counts: the
medians of after / before within a turn. `network`: Docker's usual one.
"""

from __future__ import annotations

import os
import pkgutil
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.dockerd import private

HERE = Path(__file__).parent
ROOT = HERE.parent
HELPERS = {"__main__", "lateness", "shim.programs", "live"} | {
    f"scale.{name}" for name in ("lab", "schedulers", "writes", "reads", "page")
}  # what the others share

# What each program says, by its name; the number is milliseconds, or events a second.
LAUNCH = {
    "docker run -d, ms": r"^docker run -d\s+([\d.]+) ms",
    "at our engine, ms": r"^at our engine\s+([\d.]+) ms",
    "at our engine, ms more": r"^at our engine.* paired ([+-][\d.]+) ms",
    "over REST, ms": r"^over REST\s+([\d.]+) ms",
    "over REST, ms more": r"^over REST.* paired ([+-][\d.]+) ms",
}
WRITES = {"2,000 events/s: the loop is late, 99 %, ms": r"late, loaded: .* 99 % ([\d.]+) ms"}
FLOOD = {"as many events as it takes, 1/s": r"\((\d+)/s\)"}
FLOOD_RATE = 20_000  # a second; more than can be written


def measure(tree: Path, address: str, rounds: int) -> dict[str, float]:
    found = {}
    for words, patterns in (
        (["benchmarks.docker_launch", str(rounds)], LAUNCH),
        (["benchmarks.write_path", "2000", "10"], WRITES),
        (["benchmarks.write_path", str(FLOOD_RATE), "2"], FLOOD),
    ):
        said = subprocess.run(
            [sys.executable, "-m", *words], cwd=tree, env={**os.environ, "DOCKER_HOST": address},
            stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
        for name, pattern in patterns.items():
            match = re.search(pattern, said, re.MULTILINE)
            assert match, f"{words} in {tree} says nothing like {pattern}: {said}"
            found[name] = float(match[1])
    return found


def compare(before: Path, turns: int, rounds: int, *, network: bool) -> None:
    pairs = []
    with private(network) as engine:
        for turn in range(turns):
            trees = [before, ROOT][:: 1 if turn % 2 else -1]
            told = {tree: measure(tree, engine.address, rounds) for tree in trees}
            pairs.append((told[before], told[ROOT]))
            figures = (f"{name}: {was:.1f} → {told[ROOT][name]:.1f}" for name, was in told[before].items())
            print(f"turn {turn + 1}", *figures, sep="\n    ", flush=True)
    print(f"{'medians of ' + str(turns) + ' turns of ' + str(rounds):44}{'before':>9}{'after':>9}{'after/before':>14}")
    for name in (*LAUNCH, *WRITES, *FLOOD):
        a, b = ([pair[i][name] for pair in pairs] for i in (0, 1))
        ratio = statistics.median(y / x for x, y in zip(a, b, strict=True))
        print(f"{name:44}{statistics.median(a):9.1f}{statistics.median(b):9.1f}{ratio:14.3f}")


def before(commit: str, turns: str = "5", rounds: str = "10", network: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            make = ["make", "-s", "-C", "shim", f"BUILD={tree}/.build", f"PY={sys.executable}"]
            subprocess.run(make, cwd=tree, check=True)
            compare(tree, int(turns), int(rounds), network=bool(network))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main() -> int:
    if sys.argv[1:2] == ["before"]:
        before(*sys.argv[2:])
        return 0
    failed = []
    found = pkgutil.walk_packages([str(HERE)], "benchmarks.")
    for module in sorted(each.name.removeprefix("benchmarks.") for each in found if not each.ispkg):
        if module in HELPERS:
            continue
        print(f"\n==== {module} ".ljust(100, "="), flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{module}"], cwd=HERE.parent, check=False).returncode:
            failed.append(module)
    if failed:
        print(f"\nFailed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
