"""Many processes that start at once: how long until each has its context and its first memory?

    python -m benchmarks.startup [PROCESSES] [ROUNDS]

A scheduler of its own (process engine, simulated card) runs one container that forks so many processes; each opens its
session, gets its lease and makes its context. In turns with the same program without the shim. The bar: 300 processes,
p99 from HELLO to the lease at most 2 s; what is measured here holds that and the native start in it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.programs import build
from tests.support.card import BUILD, ROOT

GIB = 1 << 30
Times = list[tuple[float, float]]  # ms to the context, ms to the first allocation


def read(text: str) -> Times:
    return [(float(first), float(second)) for first, second in (line.split() for line in text.splitlines())]


def show(name: str, times: Times) -> None:
    for column, what in enumerate(("context", "allocation")):
        values = [row[column] for row in times]
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        figures = f"{statistics.median(values):>10.1f}{cuts[98]:>10.1f}{max(values):>10.1f}"
        print(f"{name:10}{what:12}{len(values):>6}{figures}   (ms: median, p99, longest)")


def until(condition: Callable[[], Any], within: float, what: str) -> Any:
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {within} s")
        time.sleep(0.02)
    return value


def native(program: Path, home: Path, processes: int) -> Times:
    env = {**os.environ, "GPUSHARE_SIM": str(next((home / "card").iterdir())), "LD_LIBRARY_PATH": str(BUILD / "sim")}
    return read(subprocess.check_output([program, "start", str(processes)], env=env, text=True))


def shimmed(program: Path, home: Path, processes: int) -> Times:
    from django.contrib.auth.models import User

    from web.models import Command, Container

    owner, _ = User.objects.get_or_create(username="benchmark")
    container = Container.objects.create(
        name=f"start-{Container.objects.count()}",
        owner=owner,
        image="local",
        command=[str(program), "start", str(processes)],
        gpu_memory=60 * GIB,
    )
    Command.objects.create(kind="launch", container=container, issued_by=owner)
    until(lambda: Container.objects.filter(pk=container.pk, finished_at__isnull=False).exists(), 120, "the container")
    return read((home / "logs" / f"{container.pk}.log").read_text())


def main(processes: int = 300, rounds: int = 3) -> None:
    program = build("calls")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        os.environ.update(GPUSHARE_HOME=folder, GPUSHARE_GPUS="sim:1x64GiB", GPUSHARE_ENGINE="process")
        os.environ.update(DJANGO_SETTINGS_MODULE="appliance.settings", GPUSHARE_LOG="WARNING")
        manage = [sys.executable, str(ROOT / "manage.py")]
        subprocess.run([*manage, "migrate", "-v0"], check=True)
        import django

        django.setup()
        scheduler = subprocess.Popen([*manage, "runscheduler"])
        try:
            from web.models import Node

            until(lambda: Node.objects.filter(seen_at__isnull=False).exists(), 60, "the scheduler")
            for _ in range(rounds):
                show("native", native(program, home, processes))
                show("shimmed", shimmed(program, home, processes))
        finally:
            scheduler.terminate()
            scheduler.wait()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
