"""What is kept of a container's output: its beginning. A program may print without an end, and a disk has one.

Standard library only: keepers run on nothing else.
"""

from __future__ import annotations

import os

PIECE = 64 << 10  # bytes


def mark(limit: int) -> bytes:
    """What a log ends with that has taken `limit` bytes."""
    return f"\n[gpushare: the output passed {limit >> 20} MiB; what follows is not kept]\n".encode()


def keep(source: int, log: int, limit: int) -> None:
    """Copies from one descriptor to the other until the source ends. The rest is read too, so that nobody waits.

    What a full disk does not take is lost.
    """
    left = limit
    while data := os.read(source, PIECE):
        if left >= 0:
            left -= len(data)
            _write(log, data if left >= 0 else data[:left] + mark(limit))


def _write(log: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(log, data) :]
    except OSError:
        return
