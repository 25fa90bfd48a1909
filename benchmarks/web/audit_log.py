"""The audit log's page over a million entries: the newest, the oldest, one person's, one name's, one day's.

A database of its own, the one of DATABASE_URL if that is set; the entries are written past the chain, whose
verification is not what is measured. Told are milliseconds of the page's own reading, the median of so many.

    python -m benchmarks.web.audit_log [--entries 1000000] [--rounds 20]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta

PEOPLE, NAMES, DAYS = 200, 5000, 365


def fill(entries: int) -> None:
    from django.utils import timezone

    from web.models import AuditEntry, Seal

    dice, end = random.Random(5), timezone.now()
    seal = Seal.objects.create(number=1, at=end, rows=entries, previous="0" * 64, hash="0" * 64)
    made = 0
    while made < entries:
        rows = [
            AuditEntry(
                at=end - timedelta(days=DAYS) * (1 - number / entries),
                action="launch",
                actor=f"person-{dice.randrange(PEOPLE)}",
                subject=f"job-{dice.randrange(NAMES)}",
                detail={"image": "local"},
                seal=seal,
            )
            for number in range(made, min(entries, made + 10_000))
        ]
        AuditEntry.objects.bulk_create(rows, batch_size=1000)
        made += len(rows)


def median(rounds: int, read: Callable[[], object]) -> float:
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        read()
        took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


def run(entries: int, rounds: int) -> None:
    from django.utils import timezone

    from web.audit import reading
    from web.models import AuditEntry

    fill(entries)
    first = AuditEntry.objects.earliest("id").pk
    day = timezone.now() - timedelta(days=DAYS // 2)
    asked = {
        "the newest": lambda: reading.page(reading.entries(), 50),
        "the oldest": lambda: reading.page(reading.entries(), 50, first + 60),
        "one person's, from the middle": lambda: reading.page(reading.entries("person-7"), 50, first + entries // 2),
        "one name's": lambda: reading.page(reading.entries(name="job-7"), 50),
        "one day's": lambda: reading.page(reading.entries(start=day, end=day + timedelta(days=1)), 50),
        "nobody's": lambda: reading.page(reading.entries("nobody"), 50),
    }
    print(f"{entries:,} entries, {rounds} rounds")
    for words, read in asked.items():
        print(f"{words:32} {median(rounds, read):8.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"GPUSHARE_HOME": home, "DJANGO_SETTINGS_MODULE": "appliance.settings"}
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        run(asked.entries, asked.rounds)


if __name__ == "__main__":
    main()
