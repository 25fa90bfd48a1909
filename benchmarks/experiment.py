"""The paper's experiment for real: its workload under every policy, with a live scheduler and real programs.

    python -m benchmarks.experiment [--count 16] [--seed 0] [--speed 4] [--engine process|docker]
                                    [--gpus sim:1x4742MiB | nvidia:cap=4742MiB] [--policy NAME …]

Each job is a container with the workload program in it: it takes its memory, works on a part of it, holds it for the
job's time and checks it. Beside each measured figure stands the simulated one for the same jobs, the same size of a
context and the same card. `--speed 4` plays four times as fast as the paper: both kinds of figures shrink alike, except
for what starting and ending a program takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchmarks.live import Live
from tests.support.card import BUILD

if TYPE_CHECKING:
    from benchmarks.simulation.workloads import Job
    from web.models import Container

MIB = 1 << 20
MODULE = 64 * MIB  # more than what a real driver takes for a loaded kernel, which the quota has to hold, too


@dataclass(frozen=True)
class Figures:
    """Seconds: the last end, the mean time suspended, the longest single wait."""

    finish: float
    suspended: float
    longest: float

    def __str__(self) -> str:
        return f"{self.finish:>9.1f}{self.suspended:>10.1f}{self.longest:>9.1f}"


def jobs_for(count: int, seed: int, speed: float, context: int, spare: int = 0) -> list[Job]:
    """The paper's jobs; each asks for its context and then for the rest, as programs do."""
    from benchmarks.simulation.workloads import CONTEXT, paper

    return [
        replace(
            job,
            arrives=job.arrives / speed,
            seconds=job.seconds / speed,
            asks=(context, job.asks[0] - CONTEXT),
            quota=context + job.asks[0] - CONTEXT + spare,
        )
        for job in paper(count, seed)
    ]


def play(live: Live, policy: str, jobs: Sequence[Job], image: str, workload: str) -> Figures:
    from web.models import AllocationEvent

    with live.scheduler(policy):
        begun, containers = time.time(), []
        for place, job in enumerate(jobs):
            time.sleep(max(0.0, begun + job.arrives - time.time()))
            size = str(job.asks[1] // MIB) + "MiB"
            words = [workload, "--bytes", size, "--chunks", "1", "--check", "8MiB", "--hold", f"{job.seconds:.3f}"]
            containers.append(live.launch(f"{policy}-{place}", words, job.quota, image))
        rows = live.finished(containers, within=1200)
    check(live, rows)
    waits = AllocationEvent.objects.filter(container__in=rows, kind="resumed").values_list("waited", flat=True)
    return Figures(
        finish=max(row.finished_at.timestamp() for row in rows if row.finished_at) - begun,
        suspended=statistics.mean(row.suspended_seconds for row in rows),
        longest=max(waits, default=0.0),
    )


def check(live: Live, rows: Sequence[Container]) -> None:
    for row in rows:
        if row.exit_code != 0:
            raise SystemExit(f"{row.name} ended with {row.exit_code} ({row.reason}):\n{live.log(row)}")


def program(engine: str) -> tuple[str, str]:
    """The image, and where the workload is in it."""
    if engine != "docker":
        return "local", str(BUILD / "workload")
    from appliance.demo.image import WORKLOAD, build

    return build(), WORKLOAD


def card(live: Live) -> tuple[int, int]:
    """What containers may hold together, and what one context takes: as the scheduler found it."""
    from web.models import Gpu

    with live.scheduler("fifo"):
        gpu = Gpu.objects.filter(present=True).earliest("index")
        # It is a card for the experiment alone: what is foreign now is the context that was just measured.
        return gpu.most, gpu.context


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", type=float, default=4.0)
    parser.add_argument("--engine", choices=("process", "docker"), default="process")
    parser.add_argument("--gpus", default="sim:1x4742MiB")
    parser.add_argument("--policy", action="append")
    options = parser.parse_args(words)

    with Live(options.gpus, options.engine) as live:
        from benchmarks.simulation.simulate import run
        from scheduler.core.policies import POLICIES

        image, workload = program(options.engine)
        capacity, context = card(live)
        spare = 0 if options.gpus.startswith("sim") else MODULE
        jobs = jobs_for(options.count, options.seed, options.speed, context, spare)
        print(
            f"{options.count} containers, seed {options.seed}, {options.speed:g} times as fast as the paper's;", end=" "
        )
        print(f"card {capacity / MIB:.0f} MiB ({options.gpus}), context {context / MIB:.0f} MiB, {options.engine}")
        print(f"{'':12}{'measured: finish':>20}{'suspended':>10}{'longest':>9}{'simulated: finish':>20}", end="")
        print(f"{'suspended':>10}{'longest':>9}   (s)", flush=True)
        for policy in options.policy or POLICIES:
            measured = play(live, policy, jobs, image, workload)
            simulated = run(policy, jobs, options.seed, capacity)
            expected = Figures(simulated.finish, simulated.suspended, simulated.longest)
            print(f"{policy:12}{'':11}{measured}{'':11}{expected}", flush=True)


if __name__ == "__main__":
    main()
