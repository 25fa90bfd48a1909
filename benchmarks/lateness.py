"""Runs `manage.py` as usual, while the scheduler's event loop notes how late it is.

    python -m benchmarks.lateness FILE up

A coroutine of the scheduler's own loop asks to be woken each 5 ms; by how much that comes later is written to FILE, a
line in milliseconds each. Nothing can be decided in that time.
"""

import asyncio
import os
import sys
import time
from functools import partial
from pathlib import Path

STEP = 0.005  # seconds


async def note(path: Path) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    with path.open("a", buffering=1 << 16) as file:
        while True:
            due = max(due + STEP, loop.time())
            await asyncio.sleep(due - loop.time())
            file.write(f"{time.time():.3f} {(loop.time() - due) * 1e3:.3f}\n")


def main(path: str, *words: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
    import django
    from django.core.management import execute_from_command_line

    django.setup()
    from scheduler.parts import Part
    from scheduler.worker import Scheduler

    parts = Scheduler._parts
    Scheduler._parts = lambda self: [*parts(self), Part("lateness", partial(note, Path(path)))]  # type: ignore[method-assign]
    execute_from_command_line(["manage.py", *words])


if __name__ == "__main__":
    main(*sys.argv[1:])
