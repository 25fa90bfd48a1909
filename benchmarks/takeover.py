"""How long a new scheduler takes to take over what lives, and for how long nobody decides.

    python -m benchmarks.takeover [PROCESSES] [CONTAINERS]

So many processes hold memory in so many containers when the scheduler is killed (-9); another starts at once. Shown:
from its start to its first decision (an allocation beyond a lease is granted), the part of that which is the take-over
itself (by its log), and the longest time without a decision, from before the kill.
"""

import re
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.live import GIB, Live, until
from shim.binding import Type
from tests.support.card import ROOT
from tests.support.raw import Raw

# One container: so many processes that each hold 1 MiB, and stay.
HOLDERS = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.raw import Raw
for _ in range(int(sys.argv[3])):
    if os.fork() == 0:
        raw = Raw(Path(sys.argv[2]).parent)
        page = raw.hello()
        raw.need(1 << 20)
        assert raw.read() is not None
        page[0].accept(1 << 20)
        print("holds", flush=True)
        signal.pause()
time.sleep(3600)
"""


class Asker(threading.Thread):
    """Asks for more all the time, as a program does, and notes when it was answered."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self.answered: list[float] = []
        self.stop = threading.Event()

    def run(self) -> None:
        page, serial = None, 0
        while not self.stop.is_set():
            try:
                raw = Raw(self._directory)
                got = raw.hello()
                page = page or got
                while not self.stop.is_set():
                    serial += 1
                    raw.need(4096, serial)
                    answer = raw.read()
                    if answer is None:
                        break
                    if answer.type == Type.GRANTED and page is not None:
                        page[0].accept(answer.bytes)
                    self.answered.append(time.perf_counter())
            except (OSError, AssertionError):
                time.sleep(0.005)


def main() -> None:
    processes, containers = (int(word) for word in (*sys.argv[1:], *("500", "20")[len(sys.argv) - 1 :]))
    each = processes // containers
    holder = ["/bin/sh", "-c", f'exec {sys.executable} -c "$0" {ROOT} "$GPUSHARE_SOCKET" {each}', HOLDERS]
    with Live(gpus="sim:1x1024GiB") as live:
        with live.scheduler("fair") as first:
            rows = [live.launch(f"holds-{n}", holder, gpu_memory=600 * GIB) for n in range(containers)]
            logs = [live.home / "logs" / f"{row.pk}.log" for row in rows]
            until(lambda: sum(_holding(log) for log in logs) == each * containers, 300, "all processes")
            asker = Asker(live.home / "sockets" / str(rows[0].pk))
            asker.start()
            until(lambda: len(asker.answered) > 100, 60, "the first answers")
            first.kill()
            first.wait()
        begun, output = time.perf_counter(), live.home / "takeover.log"
        with output.open("w") as log, live.scheduler("fair", GPUSHARE_LOG="INFO", stderr=log):
            until(lambda: asker.answered[-1] > begun, 120, "an answer of the new scheduler")
            asker.stop.set()
            asker.join()
        (took,) = re.findall(r"took over (\d+) processes in ([0-9.]+) s", output.read_text())
    answered = next(at for at in asker.answered if at > begun)
    silent = max(later - before for before, later in pairwise(asker.answered))
    print(
        f"{took[0]} processes in {containers} containers taken over in {took[1]} s; first decision "
        f"{answered - begun:.2f} s after the scheduler's start, longest time without one {silent:.2f} s"
    )


def _holding(log: Path) -> int:
    return log.read_text().count("holds") if log.exists() else 0


if __name__ == "__main__":
    main()
