"""What a well-behaved container notices of one that attacks: how long its calls beyond its lease take.

    python -m benchmarks.bystander [SECONDS] [ATTACK…]

A scheduler of its own with local processes and a simulated card. One process asks for memory again and again, 2 ms
apart: alone, then during each attack of tests/support/attacks.py by eight containers, then alone again. Told are the
median, the 99th percentile and the longest of its calls, and the longest that the scheduler's loop was late. Where the
machine is busy with something else, so are the figures: the first line says with how much.

The attackers have what the others leave of the processors (the lowest priority, as containers have a limit of theirs).
What is measured is what they do to the scheduler; eight programs that do nothing but count would slow it as well, where
there are two cores for all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

from benchmarks.live import GIB, Live, until
from tests.support.attacks import ATTACKS, Bystander, attack

ATTACKERS = 8
LIMIT = 0.020  # seconds, of the 99th percentile


@contextmanager
def attacked(name: str, sockets: list[Path]) -> Iterator[None]:
    with ExitStack() as stack:
        for directory in sockets:
            stack.enter_context(attack(name, directory, nice=19))
        yield


def measure(name: str, sockets: list[Path], directory: Path, seconds: float) -> bool:
    """Prints one line; whether the bystander's calls were quick enough."""
    from web.models import Node

    with ExitStack() as stack:
        if name:
            stack.enter_context(attacked(name, sockets))
        bystander = Bystander(directory)
        late, end = 0.0, time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.5)
            late = max(late, Node.objects.get().late)
        took = bystander.stop()
    high = quantiles(took, n=100)[98]
    print(
        f"{name or 'nobody else':<30} {len(took):>6} {median(took) * 1e3:>8.2f} ms {high * 1e3:>8.2f} ms "
        f"{max(took) * 1e3:>8.1f} ms {late * 1e3:>8.0f} ms",
        flush=True,
    )
    return high <= LIMIT


def main() -> int:
    seconds = float(sys.argv[1]) if sys.argv[1:] else 10.0
    names = sys.argv[2:] or [name for name in ATTACKS if name != "output"]
    with Live(gpus="sim:1x64GiB") as live, live.scheduler("fair"):
        from web.models import Container

        # Together they may have more than there is, so that no lease is larger than what was asked for. The bystander's
        # is guaranteed: others may fill the card, and what is measured is not whether there is memory.
        sleep = ["/bin/sleep", "3600"]
        bystander = live.launch("bystander", sleep, gpu_memory=GIB, guaranteed=True)
        launched = [live.launch(f"attacker-{n}", sleep, gpu_memory=32 * GIB) for n in range(ATTACKERS)]
        try:
            until(lambda: Container.objects.filter(engine_id="").count() == 0, 120, "the launch")
            first, *others = [live.home / "sockets" / str(each.pk) for each in (bystander, *launched)]
            print(f"{ATTACKERS} containers attack; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            print(f"{'attack':<30} {'calls':>6} {'median':>11} {'p99':>11} {'longest':>11} {'loop late':>11}")
            well = [measure(name, others, first, seconds) for name in ("", *names, "")]
        finally:
            for path in live.home.glob("processes/*/running.json"):
                os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
    return 0 if all(well) else 1


if __name__ == "__main__":
    sys.exit(main())
