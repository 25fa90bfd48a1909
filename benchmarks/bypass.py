"""Within what time a program that takes 80 % of a card past the shim is reported, and ended.

    python -m benchmarks.bypass [TIMES] [GPUS]

Each way past the shim, so many times (5), as local processes on a simulated card or on those of `nvidia`: from the
moment in which the program has the memory, by its own word, to the appliance's event, and to the end of its container,
by the appliance's records. The exit code is 1 if any was reported later than 2 s or ended later than 3 s.
"""

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.live import GIB, Live, until
from tests.support.past import Command, built, held_at, ways

SHOWN_WITHIN, ENDED_WITHIN = 2.0, 3.0  # seconds


def main(times: str = "5", gpus: str = "sim:1x5GiB") -> int:
    simulated = gpus.startswith("sim")
    late = []
    with tempfile.TemporaryDirectory() as folder, Live(gpus=gpus) as live:
        Path(folder).chmod(0o755)
        commands = ways(built(Path(folder), static=simulated), static=simulated)
        with live.scheduler("fair", GPUSHARE_BYPASS_ACTION="kill", GPUSHARE_LOG="ERROR"):
            for way, command in commands.items():
                figures = [found for number in range(int(times)) if (found := _once(live, f"{way}-{number}", command))]
                shown, ended = ([each[column] for each in figures] for column in (0, 1))
                if not figures:
                    print(f"{way:26}  is no way past it here", flush=True)
                    continue
                late += [way] * (max(shown) > SHOWN_WITHIN or max(ended) > ENDED_WITHIN)
                print(f"{way:26}  shown {_figures(shown)}   ended {_figures(ended)}   of {len(figures)}", flush=True)
    print(f"too late: {', '.join(late)}" if late else f"all within {SHOWN_WITHIN} s, ended within {ENDED_WITHIN} s")
    return len(late)


def _once(live: Live, name: str, command: Command) -> tuple[float, float] | None:
    """Seconds until it was reported and until it had ended; None if it did not get past the shim."""
    from web.models import AllocationEvent, Gpu

    gpu = until(lambda: Gpu.objects.filter(foreign__lt=GIB // 16, present=True).first(), 60, "an empty card")
    assert gpu is not None
    time.sleep(random.random())  # so that it comes at any time between two looks
    container = live.launch(name.replace(" ", "-"), command(gpu.free * 8 // 10), gpu_memory=2 * GIB)
    (row,) = live.finished([container])
    if (held := held_at(live.log(container))) is None:
        print(f"{name}: {row.reason} {live.log(container)[-200:].strip()}", flush=True)
        return None
    assert row.finished_at is not None
    event = AllocationEvent.objects.get(container=container, kind="bypass")
    return event.at.timestamp() - held, row.finished_at.timestamp() - held


def _figures(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
