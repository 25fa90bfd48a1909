"""Where a backup is put together or taken apart: a folder for its owner's eyes, which goes when that is done.

Who is killed leaves it, with the whole database in it. So it is locked by who works in it, and the next to work there
removes those whose lock nobody holds.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp


@contextmanager
def workplace(parent: Path, prefix: str) -> Iterator[Path]:
    """Raises OSError."""
    for path in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # somebody else's, gone by now, or no folder
            _remove_if_left(path)
    folder = Path(mkdtemp(prefix=prefix, dir=parent))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems have no locks: there what is left stays
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder)
        os.close(lock)


def _remove_if_left(path: Path) -> None:
    """Raises OSError where it is in use, or cannot be recognised as ours."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # An empty one may have been made this moment, by somebody who is about to lock it.
        if os.fstat(lock).st_uid == os.geteuid() and os.listdir(lock):
            shutil.rmtree(path)
    finally:
        os.close(lock)
