"""A disk so small that a test can fill it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, size: str, *options: str) -> Iterator[Path]:
    """Mounts one of this size, such as "4m", in a new folder. Skips the test where nothing may be mounted."""
    at.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={size}", *options)), "tmpfs", at]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def fill(disk: Path, room: int = 0) -> None:
    """Leaves `room` bytes, or less if others write at the same time. `disk / "filler"` is what is in the way."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    space = os.statvfs(disk)
    with suppress(OSError):
        filler.write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - room)))
