"""The control group above all containers of one scheduler, and what they may take of the host's memory together.

Each has a limit of its own, but ten of them may each be given nearly the whole host. The group above them is Docker's
CgroupParent: by the cgroupfs driver a folder that we make, by systemd's a slice that it makes with its first container.
The limit is put into it at every start of the scheduler, and looked at after every launch, since systemd writes its own
when it makes the slice.
"""

import contextlib
import errno
import hashlib
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from web.sizes import format_size

ROOT = Path("/sys/fs/cgroup")
DRIVERS = ("cgroupfs", "systemd")


class SharedCgroup:
    """`total`: bytes. `parent` is what Docker calls the group, `path` what the kernel does."""

    def __init__(self, home: Path, info: Mapping[str, Any], total: int, root: Path = ROOT) -> None:
        name = f"gpushare-{hashlib.sha256(os.fsencode(home)).hexdigest()[:12]}"
        self.total = total // mmap.PAGESIZE * mmap.PAGESIZE  # the kernel counts in pages
        self._root, self._by_systemd = root, info["CgroupDriver"] == "systemd"
        self.parent = f"{name}.slice" if self._by_systemd else f"/{name}"
        self.path = f"/gpushare.slice/{name}.slice" if self._by_systemd else f"/{name}"
        if info.get("CgroupVersion") == "2":
            self._memory, self._usage, self._limits = root, "memory.current", ["memory.max"]
        else:
            self._memory, self._usage = root / "memory", "memory.usage_in_bytes"
            # With swap as well, or what is too much would go there.
            self._limits = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        self._folder = self._memory / self.path.lstrip("/")

    def hold(self) -> str:
        """Puts the limit in place, unless it is. Returns why it cannot be, for people; empty if all is well."""
        try:
            self._make()
            # Slices are made by systemd, with the first container.
            if self._folder.exists() or not self._by_systemd:
                self._set()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def held(self) -> int:
        """Bytes that its containers have, less what the kernel drops when it is short: the contents of files."""
        stat = dict(line.split() for line in (self._folder / "memory.stat").read_text().splitlines())
        files = (int(stat.get(f"total_{kind}", stat.get(kind, 0))) for kind in ("inactive_file", "active_file"))
        return max(0, int((self._folder / self._usage).read_text()) - sum(files))

    def left(self) -> int | None:
        """Bytes that its containers may still take; None where nothing keeps them from more."""
        try:
            return max(0, self.total - self.held()) if self._limit() == self.total else None
        except OSError:
            return None

    def remove(self) -> None:
        """Takes the control group away, unless a container is left in it."""
        if not self._by_systemd:
            for folder in (self._root / self.parent[1:], *self._root.glob(f"*{self.parent}")):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def __str__(self) -> str:
        """The reason of a container that was ended because all together had passed the limit."""
        return (
            f"Out of host memory: all containers together exceeded their limit of {format_size(self.total)}, and the "
            "kernel ended this one."
        )

    def _make(self) -> None:
        # So the kernel writes where the host's first process is, seen from a cgroup namespace below.
        if "/.." in Path("/proc/1/cgroup").read_text():
            raise OSError("The scheduler sees control groups of its own, not the host's.")
        if not os.access(self._memory, os.W_OK):
            raise OSError(errno.EACCES, f"The scheduler may not write to {self._memory}.")
        if not self._by_systemd:
            # None in version 1; and where it cannot be, there is no file to write to.
            with contextlib.suppress(OSError), (self._memory / "cgroup.subtree_control").open("r+") as control:
                control.write("+memory")
            self._folder.mkdir(exist_ok=True)
            if not (self._folder / self._limits[0]).exists():
                raise OSError(
                    errno.ENODEV, f"{self._memory}/cgroup.subtree_control lets no group below have a limit of memory."
                )

    def _set(self) -> None:
        limit = self._limit()
        if limit == self.total:
            return
        lower = limit is None or limit > self.total
        if lower and (held := self.held()) > self.total:  # in version 2 some of them would be ended at once
            raise OSError(errno.EBUSY, f"Running containers hold {format_size(held)} already.")
        # That with swap is never the lower of the two.
        for name in self._limits if lower else reversed(self._limits):
            if (self._folder / name).exists() or name == self._limits[0]:
                (self._folder / name).write_text(str(self.total))

    def _limit(self) -> int | None:
        text = (self._folder / self._limits[0]).read_text().strip()
        return None if text == "max" else int(text)


def shared_cgroup(home: Path, info: Mapping[str, Any], total: int | None) -> SharedCgroup | None:
    """None where this Docker engine lets nobody choose the group, or limits no memory at all (`total` is None)."""
    rootless = any("rootless" in option for option in info.get("SecurityOptions", []))
    return (
        None
        if total is None or rootless or info.get("CgroupDriver") not in DRIVERS
        else SharedCgroup(home, info, total)
    )
