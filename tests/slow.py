"""Which tests wait for `make test-all` because they take long: `python -m tests.slow DURATIONS`, which writes slow.txt.

DURATIONS is what a run of all tests leaves in the file `GPUSHARE_TEST_DURATIONS` names (tests/support/recorded.py). A
test waits if it takes longer than LONGEST and no promise of docs/promises.md is shown by it with `make test`; the
quickest of each file stays. What its file shares is not counted: it falls to whichever test is first. A test that did
not run stays where it was.
"""

import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "slow.txt"
LONGEST = 1.5  # seconds for all cases of a test together


def cost(lines: Iterable[str]) -> dict[str, float]:
    """Seconds of each test by its name without its cases, of `total set-up name`."""
    rows = [(float(total), float(setup), name) for total, setup, name in (line.split(maxsplit=2) for line in lines)]
    setups = defaultdict(list)
    for _, setup, name in rows:
        setups[_file(name)].append(setup)
    usual = {file: statistics.median(each) for file, each in setups.items()}
    found: dict[str, float] = defaultdict(float)
    for total, setup, name in rows:
        found[name.partition("[")[0].strip()] += total - setup + min(setup, usual[_file(name)])
    return found


def waiting(costs: Mapping[str, float], promised: Iterable[str]) -> list[str]:
    shown = tuple(promised)
    stay = {name for name, seconds in costs.items() if seconds <= LONGEST or any(_within(name, each) for each in shown)}
    files = {_file(name) for name in stay}
    for name in sorted(costs, key=lambda name: costs[name]):
        if _file(name) not in files:
            stay.add(name)
            files.add(_file(name))
    return sorted(costs.keys() - stay)


def promises() -> list[str]:
    """Tests, and whole files, that docs/promises.md says run with `make test`."""
    page = (ROOT / "docs" / "promises.md").read_text()
    return re.findall(r"\| `(tests/\S+?)` \| `make test` \|$", page, re.MULTILINE)


def _file(name: str) -> str:
    return name.partition("::")[0]


def _within(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in ("", ":", "[")


def main(durations: str) -> None:
    costs = cost(Path(durations).read_text().splitlines())
    found = waiting(costs, promises())
    others = {name for name in LIST.read_text().split() if name not in costs and (ROOT / _file(name)).exists()}
    LIST.write_text("".join(f"{name}\n" for name in sorted({*found, *others})))
    left: dict[str, float] = defaultdict(float)
    for name, seconds in costs.items():
        if name not in set(found):
            left[_file(name).split("/")[1]] += seconds
    for folder, seconds in sorted(left.items(), key=lambda item: -item[1]):
        print(f"{seconds:8.1f} s  {folder}")
    print(f"{sum(left.values()):8.1f} s  in all of {sum(costs.values()):.1f}; {len(found)} of {len(costs)} tests wait")


if __name__ == "__main__":
    main(*sys.argv[1:])
