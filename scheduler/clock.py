"""What time it is: nothing else in the scheduler's process reads a clock, so that a test can give it a virtual one.

The wall clock can be set (NTP, an admin) at any moment.
A container has a clock of its own: the date at its admission, and from then on CLOCK_BOOTTIME, which cannot be set and
goes on while the host sleeps. Whatever is stamped of a container follows it, so its spans are as long as they were and
its events are in order. A new scheduler goes on with the same clocks: a small file for each container keeps by how much
its clock is ahead of CLOCK_BOOTTIME. After a boot, or without the file, the container's row says by how much its clock
was ahead of the date, and which stamp of it is the last.

What is not about one container (a sample of a card, a sign of life) is stamped with the date. Standard library only:
keepers import it.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

FOLDER = "clocks"  # in GPUSHARE_HOME
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Source:
    """The host's clocks. A test's own go on as it says; `monotonic` is to be the time of its event loop."""

    def wall(self) -> float:
        return time.time()

    def boot(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def monotonic(self) -> float:
        return time.monotonic()


_source = Source()


def use(source: Source) -> None:
    """Every reading from now on comes from this one."""
    global _source
    _source = source


def wall() -> float:
    """Seconds since 1970, as the host's clock stands."""
    return _source.wall()


def now() -> datetime:
    """The date, as the host's clock stands."""
    return datetime.fromtimestamp(wall(), UTC)


def boot() -> float:
    """Seconds since the host was booted. Cannot be set."""
    return _source.boot()


def monotonic() -> float:
    """Seconds since some moment. Cannot be set; stands still while the host sleeps."""
    return _source.monotonic()


class Clocks:
    """Of the containers here. `later` carries out what touches the disk, beside the loop that decides."""

    def __init__(self, folder: Path, later: Callable[..., Any]) -> None:
        self._folder = folder
        self._later = later
        self._boot = BOOT_ID.read_text().strip()
        self._ahead = self._recall()  # container → seconds by which its clock is ahead of CLOCK_BOOTTIME

    def begin(self, container: str, ahead: float = 0.0, last: datetime | None = None) -> None:
        """Its clock shows the date and `ahead` seconds more, and goes on from there. A running clock is left alone.

        `last`: the last stamp that its clock gave. It shows no earlier time: a boot can set the host's clock, too.
        """
        if container not in self._ahead:
            shows = max(wall() + ahead, last.timestamp() if last else 0.0)
            self._ahead[container] = since_boot = shows - boot()
            self._later(self._keep, container, since_boot)

    def forget(self, container: str) -> None:
        if self._ahead.pop(container, None) is not None:
            self._later(self._drop, container)

    def forget_all_but(self, living: Collection[str]) -> None:
        for container in self._ahead.keys() - set(living):
            self.forget(container)

    def now(self, container: str) -> datetime:
        """By its own clock; the date, if it has none."""
        return datetime.fromtimestamp(self._seconds(container), UTC)

    def by(self, container: str, stamp: float | None) -> datetime:
        """What its clock showed when the host's showed `stamp` (seconds since 1970; None: now), not later than now."""
        shows = self._seconds(container)
        return datetime.fromtimestamp(shows if stamp is None else min(shows, stamp + shows - wall()), UTC)

    def ahead(self, container: str) -> float:
        """Seconds by which its clock is ahead of the host's: 0 until that is set."""
        return self._seconds(container) - wall()

    def _seconds(self, container: str) -> float:
        ahead = self._ahead.get(container)
        return wall() if ahead is None else boot() + ahead

    def _recall(self) -> dict[str, float]:
        """Those that an earlier scheduler began since the host was booted. The others are dropped."""
        found = {}
        for path in self._folder.iterdir() if self._folder.exists() else ():
            try:
                kept, ahead = path.read_text().split()
                if kept == self._boot and not path.suffix:
                    found[path.name] = float(ahead)
                    continue
            except (OSError, ValueError) as error:
                log.warning("the clock of container %s is not known any more: %s", path.name, error)
            with contextlib.suppress(OSError):
                path.unlink()
        return found

    def _keep(self, container: str, ahead: float) -> None:
        """Blocking. Without the file the next scheduler goes by the row, which is right to a second."""
        path = self._folder / container
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            path.with_suffix(".new").write_text(f"{self._boot} {ahead!r}")
            os.replace(path.with_suffix(".new"), path)
        except OSError as error:
            log.warning("the clock of container %s is not kept: %s", container, error)

    def _drop(self, container: str) -> None:
        with contextlib.suppress(OSError):
            (self._folder / container).unlink()
