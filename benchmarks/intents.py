"""What it costs to write down what is meant before it is done: a transaction, or a file that is made durable.

    python -m benchmarks.intents [ROUNDS]

The transaction is the scheduler's own way (Store.durable, with one row and one event in the audit's chain); the file is
written under a temporary name, synced, renamed, and its folder synced. A launch has its transaction already, the one
that makes its claims, so what is measured here is added to kills and removals only.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path


def _in_a_file(folder: Path, number: int) -> None:
    """Like this an intent could be kept beside the database."""
    partial = folder / f"{number}.partial"
    with partial.open("w") as file:
        json.dump({"kind": "kill", "reason": "Killed by ada.", "number": number}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / f"{number}.json")
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


async def _in_a_transaction(rounds: int) -> list[float]:
    from django.contrib.auth.models import User
    from django.utils import timezone

    from scheduler.store import Store
    from web.models import Container

    store = Store("bench")
    await store.open({}, {})

    def make() -> str:
        owner = User.objects.create(username="ada")
        return str(Container.objects.create(owner=owner, name="c", image="local").pk)

    container, taken = await store.ask(make), []
    for number in range(rounds):
        began = time.perf_counter()
        store.container(container, kill_requested_at=timezone.now(), reason=f"Killed by ada: {number}")
        store.event("killed", container, detail="Killed by ada.")
        await store.durable()
        taken.append(time.perf_counter() - began)
    await store.close()
    return taken


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    # In the working folder: the temporary one may be memory.
    with tempfile.TemporaryDirectory(dir=".") as home:
        os.environ.update(GPUSHARE_HOME=home, DJANGO_SETTINGS_MODULE="appliance.settings")
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        files = []
        for number in range(rounds):
            began = time.perf_counter()
            _in_a_file(Path(home), number)
            files.append(time.perf_counter() - began)
        for name, taken in (("transaction", asyncio.run(_in_a_transaction(rounds))), ("file", files)):
            cuts = statistics.quantiles(taken, n=100)
            print(f"{name:<12} median {cuts[49] * 1e3:6.2f} ms, 99 % {cuts[98] * 1e3:6.2f} ms   ({rounds} rounds)")


if __name__ == "__main__":
    main()
