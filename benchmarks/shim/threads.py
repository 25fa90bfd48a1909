"""Threads of one process that allocate and free: does the shim scale as the driver under it does?

    python -m benchmarks.shim.threads [ROUNDS]

A native and a shimmed process on the same simulated card take turns of a few milliseconds, and what counts is the
median of the paired ratios: the machine's own drift is in both. The simulated driver needs a fraction of a microsecond
for a call where a real one needs 2 to 50, so that the ratios here are far above those on a real card, while the
difference in nanoseconds is the same: that is what the shim costs.
"""

import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from benchmarks.shim.programs import build
from tests.support.card import MIB, Card
from tests.support.grants import Grants

THREADS = (1, 2, 4, 16, 64)
PAIRS = 20_000  # of each turn, all threads together
CASES = (("4 KiB in a live block", 4096, 0), ("4 KiB, stream-ordered", 4096, 1), ("2 MiB", 2 * MIB, 0))


def start(card: Card, program: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    return card.popen([str(program), "pairs"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def turn(process: subprocess.Popen[str], threads: int, size: int, stream_ordered: int) -> float:
    """Nanoseconds of one allocation and its free."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{threads} {PAIRS // threads} {size} {stream_ordered}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def compare(native: subprocess.Popen[str], shimmed: subprocess.Popen[str], rounds: int) -> None:
    print(f"{'':24}{'threads':>8}{'native':>10}{'shimmed':>10}{'added':>10}{'ratio':>8}   (ns a pair)")
    for name, *what in CASES:
        for threads in THREADS:
            turns = [(turn(native, threads, *what), turn(shimmed, threads, *what)) for _ in range(rounds)]
            before, after = (statistics.median(column) for column in zip(*turns, strict=True))
            added = statistics.median(b - a for a, b in turns)
            ratio = statistics.median(b / a for a, b in turns)
            print(f"{name:24}{threads:>8}{before:>10.0f}{after:>10.0f}{added:>+10.0f}{ratio:>8.2f}")


def main(rounds: int = 31) -> None:
    program = build("calls")
    with tempfile.TemporaryDirectory() as folder:
        card = Card("sim:1x40GiB", Path(folder))
        uuids = [uuid.UUID(gpu["uuid"].removeprefix("GPU-")).bytes for gpu in card.gpus()]
        grants = Grants(Path(folder), uuids, quota=32 << 30, extra=16 << 30)
        try:
            native = start(card, program, {})
            shimmed = start(card, program, grants.env())
            compare(native, shimmed, rounds)
        finally:
            card.close()
            grants.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
