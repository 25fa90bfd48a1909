"""Many processes that start at once: how long until each has its context and its first memory?

    python -m benchmarks.shim.startup [PROCESSES] [ROUNDS]

A scheduler of its own (process engine, simulated card) runs one container that forks so many processes; each opens its
session, gets its lease and makes its context. In turns with the same program without the shim. The bar: 300 processes,
p99 from HELLO to the lease at most 2 s; what is measured here holds that and the native start in it.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.live import GIB, Live
from benchmarks.shim.programs import build
from tests.support.card import BUILD

Times = list[tuple[float, float]]  # ms to the context, ms to the first allocation


def read(text: str) -> Times:
    return [(float(first), float(second)) for first, second in (line.split() for line in text.splitlines())]


def show(name: str, times: Times) -> None:
    for column, what in enumerate(("context", "allocation")):
        values = [row[column] for row in times]
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        figures = f"{statistics.median(values):>10.1f}{cuts[98]:>10.1f}{max(values):>10.1f}"
        print(f"{name:10}{what:12}{len(values):>6}{figures}   (ms: median, p99, longest)", flush=True)


def native(program: Path, home: Path, processes: int) -> Times:
    env = {**os.environ, "GPUSHARE_SIM": str(next((home / "card").iterdir())), "LD_LIBRARY_PATH": str(BUILD / "sim")}
    return read(subprocess.check_output([program, str(processes)], env=env, text=True))


def main(processes: int = 300, rounds: int = 3) -> None:
    program = build("starts")
    with Live("sim:1x64GiB") as live, live.scheduler("fair"):
        for turn in range(rounds):
            show("native", native(program, live.home, processes))
            container = live.launch(f"start-{turn}", [str(program), str(processes)], gpu_memory=60 * GIB)
            live.finished([container])
            show("shimmed", read(live.log(container)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
