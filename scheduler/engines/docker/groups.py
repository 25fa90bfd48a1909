"""What containers use of the host, by the files of their control groups: three small reads each.

Where a group is, the kernel says of its first process; that is asked once. With cgroup v2 one folder has all of it,
with v1 each controller has its own.
"""

import os
from pathlib import Path
from typing import NamedTuple

from scheduler import proc
from scheduler.engines.base import Use

ROOT = Path("/sys/fs/cgroup")
LONGEST = 65536  # bytes of such a file


class Files(NamedTuple):
    """`unit`: of one second in `processor`. `inactive` begins the line of `stat` with the file contents that the kernel
    drops first: Docker's own figure (`docker stats`) is the memory without those."""

    processor: str
    unit: float
    memory: str
    stat: str
    inactive: bytes


class Groups:
    """Blocking; for one thread at a time."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._files: dict[tuple[str, int], Files] = {}

    def use(self, pids: dict[str, int]) -> dict[str, Use]:
        """`pids`: container → its first process. Those that have ended, or cannot be read, are left out."""
        self._files = {key: files for key, files in self._files.items() if pids.get(key[0]) == key[1]}
        found = {}
        for key in pids.items():
            try:
                if key not in self._files:
                    text = proc.read(key[1], "cgroup").decode(errors="surrogateescape")
                    self._files[key] = files_of(text, self._root)
                found[key[0]] = use(self._files[key])
            except (OSError, ValueError, KeyError):
                self._files.pop(key, None)  # asked anew, if it is there
        return found


def files_of(text: str, root: Path) -> Files:
    """`text`: what /proc/PID/cgroup says. Raises KeyError or ValueError where it does not say that."""
    lines = (line.split(":", 2) for line in text.splitlines())
    paths = {name: path.lstrip("/") for _, names, path in lines for name in names.split(",")}
    if "memory" in paths:
        processor, memory = root / "cpuacct" / paths["cpuacct"], root / "memory" / paths["memory"]
        return Files(
            f"{processor}/cpuacct.usage", 1e9, f"{memory}/memory.usage_in_bytes", f"{memory}/memory.stat",
            b"total_inactive_file ",
        )  # fmt: skip
    group = root / paths[""]
    return Files(f"{group}/cpu.stat", 1e6, f"{group}/memory.current", f"{group}/memory.stat", b"inactive_file ")


def use(files: Files) -> Use:
    processor = _read(files.processor).split()  # of v2: "usage_usec 123 …"
    number = processor[1] if len(processor) > 1 else processor[0]
    stat = _read(files.stat)
    at = stat.index(b"\n" + files.inactive) + 1 + len(files.inactive)
    inactive = int(stat[at : stat.index(b"\n", at)])
    return Use(processor=int(number) / files.unit, memory=max(0, int(_read(files.memory)) - inactive))


def _read(path: str) -> bytes:
    """The whole of it, in one call: these files are made as they are read."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, LONGEST)
    finally:
        os.close(file)
