"""What may go wrong with this host: cards that are hot or report errors, disks and host memory that are nearly full.

It is only recorded: `web/services/attention/` makes sentences of it. Disks and memory are looked at every few seconds:
their figures change all the time, and each change is written.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings

from scheduler import clock
from scheduler.containers import host_memory_budget
from scheduler.engines.base import Engine
from scheduler.gpus import Card, Reading
from scheduler.store import Store, database

TIMED_EVERY = 60.0  # seconds between two looks at the database's clock
COOLER = 5  # degrees below its limit a hot card has to be before it counts as cool: it would come and go
FEW_FILES = 1000  # that can still be made on a disk, whatever is free of it
DISK_FREE = 5 << 30  # bytes left of a disk that is nearly full: a few images' layers and logs
MEMORY_FREE = 2 << 30  # bytes left of a host's memory that is nearly full
SHARE = 10  # of what is smaller than ten times the threshold, a tenth counts


@dataclass(frozen=True, slots=True)
class Room:
    """What is free of something. `of` names it for people."""

    of: str
    free: int
    total: int
    files: int | None = None  # that can still be made

    @property
    def has_few_files(self) -> bool:
        return self.files is not None and self.files < FEW_FILES

    def is_short(self, threshold: int) -> bool:
        """Less than `threshold` bytes are free."""
        return self.has_few_files or self.free < min(threshold, self.total // SHARE)


class Health:
    def __init__(self, store: Store, engine: Engine) -> None:
        self._store, self._engine = store, engine
        self._hot: set[str] = set()
        self._since: dict[str, float] = {}
        self._timed = -TIMED_EVERY

    def see(self, cards: Mapping[str, Card], readings: Mapping[str, Reading]) -> None:
        """To be called with each reading of the cards."""
        for uuid, reading in readings.items():
            self._see_heat(cards[uuid], reading.temperature)
            self._store.gpu(uuid, ecc_errors=reading.ecc_errors)
            if reading.xid is not None:
                self._store.gpu(uuid, xid=reading.xid, xid_at=clock.now())

    def _see_heat(self, card: Card, temperature: int | None) -> None:
        limit = settings.GPUSHARE_TEMPERATURE
        if limit and temperature is not None and temperature >= limit:
            if card.uuid not in self._hot:
                self._hot.add(card.uuid)
                self._store.gpu(card.uuid, hot_since=clock.now())
        elif not limit or temperature is None or temperature <= limit - COOLER:
            self._hot.discard(card.uuid)
            self._store.gpu(card.uuid, hot_since=None)

    async def look(self) -> None:
        if clock.monotonic() - self._timed > TIMED_EVERY:
            self._timed = clock.monotonic()
            await self._store.compare_clocks()
        self._tell(await asyncio.to_thread(_short, await self._folders()))

    async def _folders(self) -> dict[str, Path]:
        """Those whose disks are looked at: what lies there → where."""
        found = {
            "GPUSHARE_HOME": settings.GPUSHARE_HOME,
            "the engine": self._engine.folder,
            "the database": await self._store.ask(database.folder),
        }
        return {what: where for what, where in found.items() if where}

    def _tell(self, short: Iterable[Room]) -> None:
        found: list[dict[str, Any]] = []
        for each in short:
            since = self._since.get(each.of, clock.now().timestamp())
            found.append({"of": each.of, "free": each.free, "total": each.total, "since": since})
        self._since = {each["of"]: each["since"] for each in found}
        self._store.node(nearly_full=found)


def _short(folders: Mapping[str, Path]) -> list[Room]:
    """A disk that does not answer holds up this thread, and nobody else."""
    free, total = host_memory_budget.host_memory()
    found = [Room("host memory", free, total)] if Room("", free, total).is_short(MEMORY_FREE) else []
    return [*found, *(disk for disk in disks(folders) if disk.is_short(DISK_FREE))]


def disks(folders: Mapping[str, Path]) -> list[Room]:
    """Each file system once, with all that lies there."""
    there: dict[int, tuple[list[str], os.statvfs_result]] = {}
    for what, folder in folders.items():
        found = _reachable(folder)
        if found is not None:
            device = found.stat().st_dev
            there.setdefault(device, ([], os.statvfs(found)))[0].append(f"{what} ({folder})")
    return [
        Room(
            f"the disk of {' and '.join(names)}",
            stat.f_bavail * stat.f_frsize,
            stat.f_blocks * stat.f_frsize,
            stat.f_favail if stat.f_files else None,
        )
        for names, stat in there.values()
    ]


def _reachable(folder: Path) -> Path | None:
    """The folder, or the nearest above it that we may look at: its owner may be somebody else."""
    for each in (folder, *folder.parents):
        try:
            if each.exists():
                each.stat()
                return each
        except OSError:
            continue
    return None
