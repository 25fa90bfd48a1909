"""The same figures of an earlier commit and of today, in turns: what a change has cost, whatever else the machine does.

    python -m benchmarks.before COMMIT launch [TURNS [ROUNDS [network]]]      (root; a dockerd of its own)
    python -m benchmarks.before COMMIT bystander [TURNS [SECONDS]]            (root)

The commit has a worktree and native parts of its own; both run with this Python and its packages. The trees take turns
at being first. Shown are the medians over the turns, and what counts: the medians of after / before within a turn.

`launch`: in each tree `docker_launch` with so many ROUNDS, and `write_path`. `network`: Docker's usual one.
`bystander`: how long the calls of one container take beside each attack of eight others (`bystander`), that many
SECONDS. A turn takes some four minutes.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.attacks import ATTACKS
from tests.support.dockerd import private

ROOT = Path(__file__).resolve().parents[1]

# What each program says, by the name of its figure.
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
BESIDE = {
    f"beside {name}, 99 % of calls, ms": rf"^{name} +\d+ +[\d.]+ ms +([\d.]+) ms"
    for name in ("nobody else", *ATTACKS)
    if name != "output"  # only inside containers
}

Measure = Callable[[Path], dict[str, float]]


def measured(tree: Path, words: Sequence[str], patterns: Mapping[str, str], **environment: str) -> dict[str, float]:
    """The figures that a program says of a tree."""
    said = subprocess.run(
        [sys.executable, *words], cwd=tree, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True,
        check=False,
    ).stdout  # fmt: skip
    found = {}
    for name, pattern in patterns.items():
        match = re.search(pattern, said, re.MULTILINE)
        assert match, f"{words} in {tree} says nothing like {pattern}: {said}"
        found[name] = float(match[1])
    return found


def of_launch(address: str, rounds: int) -> Measure:
    def measure(tree: Path) -> dict[str, float]:
        engine = {"DOCKER_HOST": address}
        return {
            **measured(tree, ["-m", "benchmarks.docker_launch", str(rounds)], LAUNCH, **engine),
            **measured(tree, ["-m", "benchmarks.write_path", "2000", "10"], WRITES, **engine),
            **measured(tree, ["-m", "benchmarks.write_path", str(FLOOD_RATE), "2"], FLOOD, **engine),
        }

    return measure


def of_bystander(seconds: str) -> Measure:
    return lambda tree: measured(tree, [str(ROOT / "benchmarks" / "bystander.py"), seconds], BESIDE)


def compare(before: Path, turns: int, measure: Measure) -> None:
    pairs = []
    for turn in range(turns):
        trees = [before, ROOT][:: 1 if turn % 2 else -1]
        found = {tree: measure(tree) for tree in trees}
        pairs.append((found[before], found[ROOT]))
        figures = (f"{name}: {was:.1f} → {found[ROOT][name]:.1f}" for name, was in found[before].items())
        print(f"turn {turn + 1}", *figures, sep="\n    ", flush=True)
    print(f"{'medians of ' + str(turns) + ' turns':44}{'before':>9}{'after':>9}{'after/before':>14}")
    for name in pairs[0][0]:
        a, b = ([pair[i][name] for pair in pairs] for i in (0, 1))
        ratio = statistics.median(y / x for x, y in zip(a, b, strict=True))
        print(f"{name:44}{statistics.median(a):9.1f}{statistics.median(b):9.1f}{ratio:14.3f}")


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A tree of this commit that can be run; it goes at the end."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), commit], cwd=ROOT, check=True)
        try:
            make = ["make", "-s", "-C", "shim", f"BUILD={tree}/.build", f"PY={sys.executable}"]
            subprocess.run(make, cwd=tree, check=True)
            shutil.copytree(ROOT / ".build" / "vendor", tree / ".build" / "vendor", dirs_exist_ok=True)
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def main(commit: str, what: str = "launch", turns: str = "5", rounds: str = "10", network: str = "") -> int:
    with worktree(commit) as tree:
        if what == "bystander":
            compare(tree, int(turns), of_bystander(rounds))
            return 0
        with private(bool(network)) as engine:
            compare(tree, int(turns), of_launch(engine.address, int(rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
