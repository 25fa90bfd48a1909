"""Names of UNIX sockets."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short(folder: Path, name: str) -> Iterator[str]:
    """In fewer than the 108 bytes of a UNIX address, however deep `folder` is. Raises OSError if there is none."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)
