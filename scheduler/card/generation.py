"""One scheduler's generation: all that may let a process go, from the scheduler itself to its guardian and its workers.

When a scheduler dies, its guardian and its workers let go whom it had stopped, for some seconds. If the next one locks
a process meanwhile to move its memory, that process runs again before its checkpoint, or within it. So all of a
generation share one lock on a file, by a descriptor that they inherit, and a scheduler locks nobody before it has that
lock, which is when the last of the generation before has ended.
"""

import asyncio
import fcntl
import logging
import os
from pathlib import Path

from scheduler import clock

LOOK = 0.01  # seconds between two tries
LONGEST = 60.0  # seconds that are waited; a worker whose call takes longer has most likely hung
log = logging.getLogger(__name__)


class Generation:
    """`fd` is what the guardian and the workers are to inherit."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.fchmod(self.fd, 0o600)  # whoever may open it could hold it, and nobody would be stopped or moved
        self._asked: float | None = None
        self._alone = False

    async def alone(self) -> None:
        """Returns once nobody of an earlier generation is left."""
        if self._asked is None:
            self._asked = clock.monotonic()
        while not self._alone:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._alone = True
            except OSError:  # it is another's; or the kernel has no room for one just now
                if clock.monotonic() > self._asked + LONGEST:
                    log.warning(
                        "a call to the driver by the last scheduler has not returned; it is waited for no longer"
                    )
                    self._alone = True
                else:
                    await asyncio.sleep(LOOK)

    def close(self) -> None:
        os.close(self.fd)
