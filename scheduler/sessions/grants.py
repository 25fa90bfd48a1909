"""What each process has been granted, in a file that the scheduler alone writes: GPUSHARE_HOME/grants.

A lease page is the process's to write as well, and while no scheduler watches it could write into it what it liked, and
have its whole quota without having waited for it. So the next scheduler believes a page no further than this file.

The file is mapped: noting a figure is one store, and the kernel has it when the scheduler is killed. (If the host dies,
so do the processes.) A grant is noted before the page shows it, and what is taken back after: a figure is never lower
than what its page may rightly say.
"""

import contextlib
import logging
import mmap
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from scheduler.gpus import uuid_bytes
from scheduler.sessions.live_containers import program_of

log = logging.getLogger(__name__)

FULL = struct.Struct("=Q")  # at the begin: 1 if there was no place for some process
RECORD = struct.Struct("=QQ16sQ")  # pid, start in clock ticks since boot, GPU, bytes granted; pid 0: free
GRANTED = struct.Struct("=Q")
FIRST = RECORD.size  # where the records begin
RECORDS = 1 << 16
Key = tuple[int, int, bytes]


class Grants:
    """`path`: made if it is not there. Raises OSError."""

    def __init__(self, path: Path) -> None:
        size = FIRST + RECORDS * RECORD.size
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size)  # a store into a mapped file cannot fail for want of room
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)
        self._at: dict[Key, int] = {}
        self._free: list[int] = []
        self._was_full = FULL.unpack_from(self._map) != (0,)
        self._is_full = False
        self._read()

    def _read(self) -> None:
        """The figures of the living, of an earlier scheduler; the places of all others are free."""
        if self._was_full:  # and stays so in the file, until all of the living are noted
            self._map[FIRST:] = bytes(len(self._map) - FIRST)
        for number, (pid, started, gpu, _) in enumerate(RECORD.iter_unpack(self._map[FIRST:])):
            place = FIRST + number * RECORD.size
            if pid and _lives(pid, started):
                self._at[pid, started, gpu] = place
            else:
                self._free.append(place)
        self._free.reverse()

    def before(self, pid: int, started: int, gpu: str) -> int | None:
        """Bytes that an earlier scheduler had granted; None if it had no place to note them all."""
        if self._was_full:
            return None
        place = self._at.get((pid, started, uuid_bytes(gpu)))
        return 0 if place is None else int(GRANTED.unpack_from(self._map, place + RECORD.size - GRANTED.size)[0])

    def note(self, pid: int, started: int, gpu: str) -> Callable[[int], None]:
        """To be called with what the process has been granted on this GPU, each time it changes."""
        key = pid, started, uuid_bytes(gpu)
        place = self._at.get(key)
        if place is None:
            if not self._free:
                log.error("more than %d processes and GPUs: the next scheduler will believe their pages", RECORDS)
                FULL.pack_into(self._map, 0, 1)
                self._is_full = True
                return lambda granted: None
            place = self._at[key] = self._free.pop()
            RECORD.pack_into(self._map, place, 0, started, key[2], 0)
            GRANTED.pack_into(self._map, place, pid)  # last: cut off before, the place is free still
        at, view = place + RECORD.size - GRANTED.size, self._map
        return lambda granted: GRANTED.pack_into(view, at, granted)

    def all_noted(self) -> None:
        """Every living process has been noted, so the next scheduler may rest on the file."""
        if not self._is_full:
            FULL.pack_into(self._map, 0, 0)

    def forget(self, pid: int, started: int, gpus: Iterable[str]) -> None:
        for gpu in gpus:
            if (place := self._at.pop((pid, started, uuid_bytes(gpu)), None)) is not None:
                GRANTED.pack_into(self._map, place, 0)
                self._free.append(place)


def _lives(pid: int, started: int) -> bool:
    with contextlib.suppress(OSError):  # out of descriptors: it may
        return (program := program_of(pid)) is not None and program.started == started
    return True
