"""How fast the live scheduler answers processes that ask all at once.

    python -m benchmarks.decisions [CLIENTS] [QUESTIONS]

Each client is a process that asks for more (NEED) as soon as it was answered; nobody has to wait for memory, so what
is measured is the slow path alone: socket, decision, record, answer. Shown are answers a second and how long one took.
"""

import sys
import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles

from benchmarks.live import GIB, Live, until
from shim.binding import Type
from tests.support.raw import Raw

MIB = 1 << 20


def ask(directory: Path, questions: int) -> list[float]:
    """One client's life: seconds that each answer took."""
    raw = Raw(directory)
    raw.socket.settimeout(60)
    raw.hello()
    took = []
    for serial in range(questions):
        begun = time.perf_counter()
        raw.need(MIB, serial)
        answer = raw.read()
        took.append(time.perf_counter() - begun)
        assert answer is not None
        assert answer.type == Type.GRANTED, answer
    return took


def main() -> None:
    clients, questions = (int(word) for word in (*sys.argv[1:], "64", "200")[:2])
    with Live(gpus="sim:1x1024GiB") as live, live.scheduler("fair"):
        from web.models import Container

        # Two, whose quotas exceed the card together: the lease is never so large that nobody would have to ask.
        containers = [live.launch(f"asks-{n}", ["/bin/sleep", "600"], gpu_memory=600 * GIB) for n in range(2)]
        until(lambda: Container.objects.filter(engine_id="").count() == 0, 30, "the launch")
        directories = [live.home / "sockets" / str(container.pk) for container in containers]
        begun = time.perf_counter()
        # Forked after Django was set up: they use nothing of it.
        with get_context("fork").Pool(clients) as pool:
            asked = [pool.apply_async(ask, (directories[n % 2], questions)) for n in range(clients)]
            took = sorted(second for answer in asked for second in answer.get(600))
        elapsed = time.perf_counter() - begun
    print(
        f"{clients} clients, {len(took)} answers: {len(took) / elapsed:.0f} a second; one took "
        f"{median(took) * 1e3:.2f} ms (median), {quantiles(took, n=100)[98] * 1e3:.2f} ms (p99)"
    )


if __name__ == "__main__":
    main()
