"""What keeping on this host costs while the database is away: python -m benchmarks.journal

A batch of events and rows, as a flush has them, with each way of SQLite to sync; and the claims of a container, which
each launch waits for. Milliseconds, in the journal's own thread: no decision waits for either.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")
django.setup()

from scheduler.store.journal import Journal, Numbered  # noqa: E402
from scheduler.store.node_snapshot import Fields, Row, Rows  # noqa: E402
from web.models import AllocationEvent, Claim, Container  # noqa: E402

ROUNDS = 300
EVENTS, ROWS = 20, 20
EVENT = AllocationEvent(at=datetime.now(UTC), kind="accepted", container_id="c" * 36, gpu_id=1, pid=1234, bytes=1 << 30,
                        used_after=1 << 31, policy="fair")  # fmt: skip
CONTAINER: Row = (Container, "c" * 36)
KNOWN: Fields = {**{f"field {number}": "some value" for number in range(40)}, "started_at": None}


def main() -> None:
    print(f"{'':28} median     99th   of {ROUNDS}")
    for sync in ("FULL", "NORMAL", "OFF"):
        with TemporaryDirectory(dir=".") as folder:
            journal = Journal(Path(folder) / "outbox.sqlite3", 1 << 30)
            journal._file.execute(f"PRAGMA synchronous={sync}")
            number = 0

            def keep(journal: Journal = journal) -> None:
                nonlocal number
                events = [Numbered(number + each, EVENT) for each in range(1, EVENTS + 1)]
                number += EVENTS
                journal.keep(events, {(Claim, ("c" * 36, each)): {"used": number} for each in range(ROWS)})

            _tell(f"{EVENTS} events, {ROWS} rows, {sync}", keep)
            if sync == "FULL":
                claims: Rows = {(Claim, ("c" * 36, 1)): {"quota": 1 << 30}}
                _tell("claims that are promised", partial(journal.promise, {CONTAINER: KNOWN}, claims, synced=False))
            journal.close()


def _tell(what: str, call: Callable[[], None]) -> None:
    took = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - begun))
    print(f"{what:28} {statistics.median(took):6.2f}   {statistics.quantiles(took, n=100)[98]:6.2f}")


if __name__ == "__main__":
    main()
