"""What is kept of a container's output: its beginning. A program may print without an end, and a disk has one.

Standard library only: keepers run on nothing else.
"""

import os
from pathlib import Path

PIECE = 64 << 10  # bytes


def make_folder_of(log: Path) -> None:
    """Where the web side, which may be of the folder's group alone, can read."""
    if not log.parent.exists():
        log.parent.mkdir(parents=True, exist_ok=True)
        log.parent.chmod(0o2750)


def open_log(path: str | Path, access: int) -> int:
    """A file of a container's output, made if it is not there. Readable by its group whatever the umask is, as the web
    side is another user."""
    file = os.open(path, access | os.O_CREAT | os.O_CLOEXEC, 0o640)
    os.fchmod(file, 0o640)
    return file


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
