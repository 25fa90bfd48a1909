"""Stopping the programs of a claim, and letting them go on, by the kernel's freezer for their control groups.

A runtime gives each container a group of its own, and the kernel tells a process's. What is frozen are the groups in
which the programs of the claim are, if nobody else is in them: the rest of their pod goes on. Version 2 freezes by a
file in each group, version 1 by a tree of its own.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from scheduler import clock, proc
from scheduler.engines.base import EngineError

ROOT = Path("/sys/fs/cgroup")
WITHIN = 10.0  # seconds in which all of a group's programs have to have stopped: one may be within a call of the kernel


class Freezer:
    """Blocking. `root`: where the control groups are mounted."""

    def __init__(self, root: Path = ROOT, read: Callable[[int, str], bytes] = proc.read) -> None:
        self._root = root
        self._read = read

    def freeze(self, pids: Iterable[int], is_mine: Callable[[int], bool]) -> None:
        """Returns when none of them runs any more. `is_mine`: whether a process is to be. Raises EngineError."""
        groups = self.groups(pids)
        for group in groups:
            if stranger := next((pid for pid in _members(group) if not is_mine(pid)), 0):
                raise _cannot(f"its control group {group} also has others in it (process {stranger}).")
        try:
            for group in groups:
                self._put(group, frozen=True)
            deadline = clock.monotonic() + WITHIN
            while not all(self.is_frozen(group) for group in groups):
                if clock.monotonic() > deadline:
                    raise _cannot(f"it did not stop within {WITHIN:.0f} seconds: it is within a call of the kernel.")
                time.sleep(0.01)
        except (OSError, EngineError) as error:
            for group in groups:
                with contextlib.suppress(OSError):
                    self._put(group, frozen=False)
            if isinstance(error, OSError):
                raise _cannot(
                    f"its control group cannot be written ({error}). It needs the host's /sys/fs/cgroup."
                ) from None
            raise

    def thaw(self, pids: Iterable[int]) -> None:
        """Raises EngineError."""
        for group in self.groups(pids):
            try:
                self._put(group, frozen=False)
            except OSError as error:
                raise EngineError(f"It cannot be let go on: its control group cannot be written ({error}).") from None

    def any_stopped(self, pids: Iterable[int]) -> bool:
        """Or about to stop: who stopped them may have been killed before they did."""
        try:
            return any(map(self._is_to_be_frozen, self.groups(pids)))
        except EngineError:
            return False

    def groups(self, pids: Iterable[int]) -> list[Path]:
        """Of these processes, without those below others. Raises EngineError."""
        found = {self._group(groups) for groups in map(self._groups_of, pids) if groups}
        return sorted(each for each in found if not any(other in found for other in each.parents))

    def is_frozen(self, group: Path) -> bool:
        """One that is gone is no hindrance."""
        with contextlib.suppress(FileNotFoundError):
            if (state := group / "freezer.state").exists():
                return state.read_text().strip() == "FROZEN"
            return "frozen 1" in (group / "cgroup.events").read_text()
        return True

    def _is_to_be_frozen(self, group: Path) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if (state := group / "freezer.state").exists():
                return state.read_text().strip() != "THAWED"
            return (group / "cgroup.freeze").read_text().strip() == "1" or self.is_frozen(group)
        return False

    def _put(self, group: Path, *, frozen: bool) -> None:
        state = group / "freezer.state"
        if state.exists():
            state.write_text("FROZEN" if frozen else "THAWED")
        elif group.exists():
            (group / "cgroup.freeze").write_text(str(int(frozen)))

    def _groups_of(self, pid: int) -> str:
        try:
            return self._read(pid, "cgroup").decode(errors="surrogateescape")
        except OSError:
            return ""  # it has ended

    def _group(self, groups: str) -> Path:
        lines = (line.split(":", 2) for line in groups.splitlines())
        paths = {name: path for _, names, path in lines for name in names.split(",")}
        path = paths.get("freezer", paths.get("", "/"))
        if path == "/" or "/.." in path:
            raise _cannot("its control group is not seen from here: the driver needs the host's control groups.")
        return self._root / ("freezer" if "freezer" in paths else "") / path.lstrip("/")


def _members(group: Path) -> list[int]:
    found: list[int] = []
    for folder, _, files in os.walk(group):
        if "cgroup.procs" in files:
            with contextlib.suppress(OSError):
                found += [int(line) for line in (Path(folder) / "cgroup.procs").read_text().split()]
    return found


def _cannot(why: str) -> EngineError:
    return EngineError(f"It cannot be paused: {why}")
