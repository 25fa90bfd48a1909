"""The quick start: how long until the appliance answers, and how much memory all its processes take.

    python -m benchmarks.up [ROUNDS]

The first start of a new home, which makes the database, and a second one. Memory is told as PSS: a page that several
processes share counts once. The bars: 4 s to the line that says that it is up, 190 MiB together after some requests.
Where the machine has other work, the processor's seconds until then say more than the clock's.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.support.appliance import Appliance


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in family(int(child)))]


def memory(pids: list[int]) -> float:
    """MiB."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def worked(pids: list[int]) -> float:
    """Seconds of a processor, user and system."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(ticks) for each in fields for ticks in each[11:15]) / os.sysconf("SC_CLK_TCK")


def use(appliance: Appliance) -> None:
    """Looks at every kind of answer once: what they need is loaded then."""
    for path in ("gpus/", "queue/", "containers/", "schema/"):
        appliance.api("GET", path)
    httpx.get(f"{appliance.url}/login/").raise_for_status()


def main(rounds: int = 5) -> int:
    took: dict[str, list[tuple[float, float]]] = {"first": [], "second": []}
    sizes = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
            began = time.perf_counter()
            appliance = Appliance(Path(folder) / "var")
            took["first"].append((time.perf_counter() - began, worked(family(appliance.process.pid))))
            use(appliance)
            sizes.append(memory(family(appliance.process.pid)))
            appliance.close()
            began = time.perf_counter()
            again = Appliance(Path(folder) / "var")
            took["second"].append((time.perf_counter() - began, worked(family(again.process.pid))))
            again.close()
    for name, starts in took.items():
        seconds, processor = zip(*starts, strict=True)
        print(
            f"{name:6} start: median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s; "
            f"of a processor {statistics.median(processor):.2f} s"
        )
    print(f"memory of all processes: {max(sizes):.0f} MiB at the most")
    return 0 if statistics.median(clock for clock, _ in took["first"]) <= 4 and max(sizes) <= 190 else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
