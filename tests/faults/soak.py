"""A day in an hour: does anything grow that should not?

The appliance's clock runs 24 times as fast; what it does each second, like measuring and writing samples, it does so
much more often, and samples past their retention go as they would in a day. Users launch, pause, change and kill
meanwhile. What the scheduler and the web take, what the database holds, and how long a program waits for its context
are shown by quarters of the day; the last is judged by the second, since the first has to fill what is kept.
"""

import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from django.db import connection

from tests.faults.storm import accounted_for, at_once, person
from tests.faults.whole import Whole
from tests.faults.world import GIB, retried
from tests.support.constants import with_constants
from web.models import AllocationEvent, Container, UsageSample

FASTER = 24
JUDGED = 6.0  # hours; in less, what is kept for an hour has hardly been filled
USERS = 4
PACE = 4.0  # seconds between two deeds of one user at most
LOOKS = 80  # at memory and the rest; a quarter has a fourth of them
QUARTERS = 4

# Forks for ever; each child makes a context, which takes a session, a lease page and a decision, and says how long.
ASKS = """
import ctypes, os, time
cuda = ctypes.CDLL("libcuda.so.1")
while True:
    if not os.fork():
        context = ctypes.c_void_p()
        cuda.cuInit(0)
        begun = time.perf_counter()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        print(f"took {time.perf_counter() - begun:.6f}", flush=True)
        os._exit(0)
    os.wait()
    time.sleep(0.25)
"""


# A week's minutes would not be over in a day: they are kept for four hours, and seconds for the usual one.
# All processes have one clock: it began here, however much later a busy machine starts them.
ENVIRONMENT = {
    "FAULTS_FASTER": str(FASTER), "FAULTS_BEGAN": str(time.time()),
    **with_constants({"web.history.rollup.MINUTES_KEPT": 4 * 3600}),
}  # fmt: skip


@dataclass
class Look:
    """What is to stay flat. Memory and `database` are bytes."""

    scheduler: dict[str, float]
    web: dict[str, float]
    database: int
    seconds: int  # samples that span one
    minutes: int
    living: int
    containers: int
    events: int


@dataclass
class Watch:
    world: Whole
    asker: Container
    looks: list[Look] = field(default_factory=list)
    waits: list[list[float]] = field(default_factory=list)  # by look, in seconds
    _read: int = 0

    def go_on(self, until: float) -> None:
        pause = (until - time.monotonic()) / LOOKS
        for _ in range(LOOKS):
            time.sleep(pause)
            self.looks.append(retried(self._look))
            self.waits.append(self._waits())

    def _look(self) -> Look:
        samples = UsageSample.objects
        return Look(
            scheduler=_takes(self.world.pids("scheduler")), web=_takes(self.world.pids("web")), database=_size(),
            seconds=samples.filter(span=1).count(), minutes=samples.filter(span=60).count(),
            living=Container.objects.live().count(), containers=Container.objects.count(),
            events=AllocationEvent.objects.count(),
        )  # fmt: skip

    def _waits(self) -> list[float]:
        lines = self.world.log(self.asker).splitlines()[self._read :]
        self._read += len(lines)
        return [float(line.split()[1]) for line in lines if line.startswith("took ")]


def _takes(pids: list[int]) -> dict[str, float]:
    (pid,) = pids
    with open(f"/proc/{pid}/statm") as file:
        memory = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return {
        "memory": memory, "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }  # fmt: skip


def _size() -> int:
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        return sum(os.path.getsize(name + end) for end in ("", "-wal") if os.path.exists(name + end))
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        return int(cursor.fetchone()[0])


def run(world: Whole, hours: float, seed: int) -> dict[str, Any]:
    """What was wrong, and the table. `hours` by the appliance's clock."""
    chance = random.Random(seed)
    people = [person(world, f"user{number}", random.Random(chance.random()), PACE) for number in range(USERS)]
    asker = world.outcome(world.begin_launch("asker", sys.executable, "-c", ASKS, gpu_memory=GIB // 4)).container
    assert asker is not None
    watch = Watch(world, asker)
    until = time.monotonic() + 3600 * hours / FASTER
    found = at_once([partial(each.act, until) for each in people], [partial(watch.go_on, until)])
    world.do("kill", asker, grace=0.0)
    found += accounted_for(world, people, set())
    rows = _rows(watch)
    table = [f"{name:42}" + "".join(f"{value:12.2f}" for value in values) for name, values, _ in rows]
    head = f"{'':42}" + "".join(f"{number:>12}" for number in ("1st quarter", "2nd", "3rd", "4th"))
    for name, (_, second, _, last), most in rows:
        if hours >= JUDGED and most and last > most * second:
            found.append(f"{name} grows from {second:.2f} to {last:.2f}")
    return {"wrong": found, "table": "\n".join([head, *table, ""]), "hours": hours}


def _rows(watch: Watch) -> list[tuple[str, list[float], float]]:
    """Name, means by quarter, and the most that the last may be of the second; 0: it may grow."""
    part = len(watch.looks) // QUARTERS

    def means(of: Any) -> list[float]:
        return [statistics.mean(of(each) for each in watch.looks[q * part : (q + 1) * part]) for q in range(QUARTERS)]

    def waits(fraction: float) -> list[float]:
        quarters = [sorted(chain(*watch.waits[q * part : (q + 1) * part])) for q in range(QUARTERS)]
        return [1000 * each[int(fraction * (len(each) - 1))] if each else 0.0 for each in quarters]

    rows: list[tuple[str, list[float], float]] = []
    for name in ("scheduler", "web"):
        rows += [
            (f"{name}: memory, MiB", means(lambda look, n=name: getattr(look, n)["memory"] / 2**20), 1.15),
            (f"{name}: descriptors", means(lambda look, n=name: getattr(look, n)["descriptors"]), 0),
            (
                f"{name}: descriptors a living container",
                means(lambda look, n=name: getattr(look, n)["descriptors"] / max(1, look.living)),
                1.3,
            ),
            (f"{name}: threads", means(lambda look, n=name: getattr(look, n)["threads"]), 1.3),
        ]
    return [
        *rows,
        ("database, MiB", means(lambda look: look.database / 2**20), 0),
        ("samples of a second", means(lambda look: look.seconds), 0),  # each living container has one a second
        ("samples of a second a living container", means(lambda look: look.seconds / max(1, look.living)), 1.3),
        ("samples of a minute", means(lambda look: look.minutes), 0),
        ("living containers", means(lambda look: look.living), 0),
        ("containers ever", means(lambda look: look.containers), 0),
        ("events of a container", means(lambda look: look.events / max(1, look.containers)), 0),
        ("to a context, median, ms", waits(0.5), 2.0),
        ("to a context, 99 of 100, ms", waits(0.99), 3.0),
    ]
