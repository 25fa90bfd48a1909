"""What a well-behaved container notices of one that attacks: how long its calls beyond its lease take.

    python -m benchmarks.bystander [SECONDS] [ATTACK…]

For each attack of tests/support/attacks.py a scheduler, local processes and a simulated card anew. One process asks for
memory again and again, 2 ms apart, while eight other containers attack; at first while they do nothing. Told are the
median, the 99th percentile and the longest of its calls, and the longest that the scheduler's loop was late.

What is measured is what they do to the scheduler. Eight programs that only count would slow it as well where there are
two processors for all, so nobody competes for those: scheduler and bystander come before whatever else the host has to
do (a real-time priority). Without the right to that, the first line says so.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

from benchmarks.live import GIB, Live, until
from tests.support.attacks import ATTACKS, Bystander, attack

ATTACKERS = 8
LIMIT = 0.020  # seconds, of the 99th percentile
SLEEP = ["/bin/sleep", "3600"]
ALONE = "nobody else"


def measure(live: Live, name: str, seconds: float) -> bool:
    """Prints one line; whether the bystander's calls were quick enough."""
    from web.models import Container

    with ExitStack() as stack:
        stack.enter_context(live.scheduler("fair"))
        stack.callback(live.end_containers)
        # Together they may have more than there is, so that no lease is larger than what was asked for. The bystander's
        # is guaranteed: others may fill the card, and what is measured is not whether there is memory.
        bystander = live.launch("bystander", SLEEP, gpu_memory=GIB, guaranteed=True)
        attackers = [live.launch(f"attacker-{n}", SLEEP, gpu_memory=32 * GIB) for n in range(ATTACKERS)]
        until(lambda: Container.objects.filter(engine_id="").count() == 0, 120, "the launch")
        first, *others = [live.home / "sockets" / str(each.pk) for each in (bystander, *attackers)]
        if name != ALONE:
            for directory in others:
                stack.enter_context(attack(name, directory))
        took, late = ask(first, seconds)
    high = quantiles(took, n=100)[98]
    figures = "".join(f"{figure * 1e3:>8.1f} ms" for figure in (median(took), high, max(took), late))
    print(f"{name:<30}{len(took):>7}{figures}{os.getloadavg()[0]:>7.1f}", flush=True)
    return high <= LIMIT


def ask(directory: Path, seconds: float) -> tuple[list[float], float]:
    """What the bystander's calls took for so long, and how late the loop was meanwhile."""
    from web.models import Node

    bystander = Bystander(directory)
    late, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.5)
        late = max(late, Node.objects.get().late)
    return bystander.stop(), late


def come_first() -> str:
    """Before everybody else on this host, with all that is started from here; in words."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return "shared with whatever else runs"
    return "for the scheduler and the bystander first"


def main() -> int:
    seconds = float(sys.argv[1]) if sys.argv[1:] else 10.0
    names = sys.argv[2:] or [name for name in ATTACKS if name != "output"]
    with Live(gpus="sim:1x64GiB") as live:
        print(f"{ATTACKERS} containers attack; {os.cpu_count()} processors, {come_first()}")
        heads = ("median", "p99", "longest", "loop late")
        print(f"{'attack':<30}{'calls':>7}{''.join(f'{head:>11}' for head in heads)}{'load':>7}")
        well = [measure(live, name, seconds) for name in (ALONE, *names)]
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
