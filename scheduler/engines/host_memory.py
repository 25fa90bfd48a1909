"""Whether the kernel has ended processes for lack of memory lately, by its own count of them.

It is the last thing to ask, where nobody may read the kernel's log (kernel_log.py), which says of whom and why: to
count is to suppose. Where the log can be read, the engines have reported them.
"""

import re
from pathlib import Path

from scheduler import clock
from scheduler.engines import kernel_log

VMSTAT = Path("/proc/vmstat")
LATELY = 5.0  # seconds


class HostMemory:
    """`look` is to be called each second or so; a rise of the count is dated by the look that saw it."""

    def __init__(self) -> None:
        self._count = _kills()
        self._risen: float | None = None

    def look(self) -> None:
        count = _kills()
        if count is None:
            return
        if self._count is not None and count > self._count:
            self._risen = clock.monotonic()
        self._count = count

    def may_have_ended_somebody(self) -> bool:
        """Whether the kernel has lately ended a process for lack of memory, where no log tells which."""
        if kernel_log.can_be_read():
            return False
        self.look()
        return self._risen is not None and clock.monotonic() - self._risen < LATELY


def _kills() -> int | None:
    """Since boot; None where the kernel does not count them (before 4.13), or they cannot be read just now."""
    try:
        found = re.search(r"^oom_kill (\d+)$", VMSTAT.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None
