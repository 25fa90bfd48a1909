"""Training steps with and without the shim: several processes of each kind stand by, and two at a time take turns.

Importing PyTorch takes longer than all that is to be measured, so the processes stay; and there are several of each
kind, because one process may be faster than its twin for its whole life. The two of a couple share their CPUs.
"""

import os
import subprocess
import sys
import threading
import time

from tests.gpu.shim import card

# What limits: images and sequences a step, and couples of processes, fewer where the card has no room for as many.
SIZES = {"the card limits": (2048, 64, 5), "the processor limits": (128, 16, 40)}
TURN = 0.1  # seconds for one model
TOGETHER = 4  # CPUs of a couple: a step has two busy threads
START = 90  # seconds for all of them to be ready; none takes longer than the whole section

Rates = dict[str, float]


class Trainer:
    def __init__(self, images: int, sequences: int, env: dict[str, str]) -> None:
        words = [sys.executable, str(card.HERE / "train.py"), str(images), str(sequences)]
        self.process = subprocess.Popen(
            words, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        if not (line := self.process.stdout.readline()):
            raise RuntimeError("a training process has ended early")
        return line.rstrip("\n").split("\t")

    def turn(self) -> tuple[Rates, Rates]:
        """Steps a second, and intercepted calls a step, of each model."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"go {TURN}\n")
        self.process.stdin.flush()
        rates, counts = {}, {}
        for _ in range(2):
            name, rate, count = self.line()
            rates[name], counts[name] = float(rate), float(count)
        return rates, counts

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def fitting(couples: int, each: int, free: int) -> int:
    """As many couples as wanted, or as there is room for if each process takes `each` bytes of `free`: at least one."""
    return max(1, min(couples, int(free * 0.95) // (2 * each)))


def pin(index: int, pair: tuple[Trainer, Trainer]) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    at = index * TOGETHER % max(1, len(cpus) - TOGETHER + 1)
    for trainer in pair:
        os.sched_setaffinity(trainer.process.pid, cpus[at : at + TOGETHER])


def rounds(
    seconds: float, images: int, sequences: int, couples: int, shim: dict[str, str], counting: dict[str, str]
) -> tuple[Rates, dict[str, list[list[tuple[float, float]]]]]:
    """Intercepted calls a step; and for each model, for each couple of processes, native and shimmed rates."""
    deadline = time.monotonic() + seconds

    def start(env: dict[str, str]) -> Trainer:
        return Trainer(images, sequences, env)

    everybody: list[Trainer] = []

    def end() -> None:
        for trainer in everybody:
            trainer.process.kill()

    limit = threading.Timer(seconds + START, end)
    limit.start()
    try:
        free = card.free()
        everybody.append(counted := start(counting))
        counted.line()  # ready
        pairs = [(start({}), start(shim)) for _ in range(fitting(couples, free - card.free(), card.free()))]
        for index, pair in enumerate(pairs):
            pin(index, pair)
            everybody.extend(pair)
        for trainer in everybody[1:]:
            trainer.line()
        _, counts = counted.turn()
        found: dict[str, list[list[tuple[float, float]]]] = {name: [[] for _ in pairs] for name in counts}
        turns = 0
        while turns < 3 or time.monotonic() < deadline:
            for index, (native, shimmed) in enumerate(pairs):
                if (turns + index) % 2:
                    a, b = native.turn()[0], shimmed.turn()[0]
                else:
                    b, a = shimmed.turn()[0], native.turn()[0]
                for name, groups in found.items():
                    groups[index].append((a[name], b[name]))
            turns += 1
        return counts, found
    finally:
        limit.cancel()
        for trainer in everybody:
            trainer.close()
