"""How far an engine that keeps output itself (Docker) has been copied from into a container's log.

The copier (scheduler/engines/docker/logs.py) writes this beside the log, in `<log>.position`. A log that a program's
keeper writes directly has no such file. An end frees memory, so it is announced at once, also where the copier is not
through yet: who follows a log asks here whether its last lines are in it.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

_POSITION = struct.Struct("=QQIB")


class Position(NamedTuple):
    size: int = 0  # bytes of the log that are certain
    stamp: int = 0  # of the last message in them, in ns since the epoch
    seen: int = 0  # messages of that stamp
    complete: bool = False  # nothing is left to copy

    def pack(self) -> bytes:
        return _POSITION.pack(*self)


def path_of_position(log: Path) -> Path:
    return Path(f"{log}.position")


def read(file: int) -> Position:
    """From an open `<log>.position`. Raises OSError."""
    known = os.pread(file, _POSITION.size, 0)
    if len(known) < _POSITION.size:
        return Position()
    size, stamp, seen, complete = _POSITION.unpack(known)
    return Position(size, stamp, seen, bool(complete))


def is_whole(log: Path) -> bool:
    """Whether a container that has ended has all of its output in the log. Raises OSError."""
    try:
        file = os.open(path_of_position(log), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return read(file).complete
    finally:
        os.close(file)
