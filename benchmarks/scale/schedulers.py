"""What schedulers of so many nodes write, through their own store, without containers, cards and decisions.

    python -m benchmarks.scale.schedulers SIZE FIRST COUNT         (started by lab.py)

Each node has its `Store`: a connection, a journal, and hints of its own. It records what a scheduler's rounds report
it: each second a sample and the shares of every container and card (`History`, `Shares`, `Measure`), a sign of life
(`Worker._live`), every other second what containers use of the host (`Using`), and now and then what has changed
between (`StatusPublisher`, `Records`, the broker). Orders are lines on stdin, each answered with a line of JSON:

    open                  makes node and cards known
    hold                  learns which containers there are
    flood SECONDS         plays so many seconds of each node as fast as it goes
    live NODES SECONDS    plays the first NODES in real time, of the others a sign of life now and then
"""

import asyncio
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any

import django

django.setup()

from channels.layers import DEFAULT_CHANNEL_LAYER, channel_layers  # type: ignore[import-untyped]  # noqa: E402
from django.conf import settings  # noqa: E402
from django.utils import timezone  # noqa: E402

from benchmarks.scale.lab import CARD, GIB, Size, name_of, uuid_of  # noqa: E402
from scheduler.gpus import Card  # noqa: E402
from scheduler.store import Store  # noqa: E402
from web.models import Claim  # noqa: E402

STEPS = 10  # looks for changed use within a second (parts.PERIODS)
SELDOM = 3.0  # seconds between signs of life of nodes that are not played; one of five seconds ago is good
# A second, of a container that computes:
USE = 0.2  # its use changes within its lease: an event, and its row
LEASE = 0.1  # it asks for more, or gives back
WAITS = 0.01  # it begins to wait, or ends it


class Host:
    """One node's scheduler, as far as the database sees it."""

    def __init__(self, size: Size, node: int) -> None:
        self.size, self.node = size, node
        self.random = random.Random(node)
        home = settings.GPUSHARE_HOME / "hosts" / name_of(node)
        home.mkdir(parents=True, exist_ok=True)
        before, settings.GPUSHARE_HOME = settings.GPUSHARE_HOME, home
        self.store = Store(name_of(node), name_of(node))
        settings.GPUSHARE_HOME = before
        self.store._layer = channel_layers.make_backend(DEFAULT_CHANNEL_LAYER)  # not one for all hosts here
        self.cards = [uuid_of(node, card) for card in range(size.cards)]
        self.had = 0.0
        self.beats = 0
        self.holders: list[tuple[str, str, bool]] = []  # container, card, whether it computes

    async def open(self) -> None:
        cards = {
            uuid: Card(uuid, index, "NVIDIA H100 80GB HBM3", CARD, CARD, GIB, simulated=True)
            for index, uuid in enumerate(self.cards)
        }
        await self.store.open(cards, {}, engine="docker", policy="fair", driver="580.159", release="", policies=[])
        for uuid in cards:
            self.store.gpu(uuid, free=CARD // 4, most=CARD, compute="turns")
        self.beat()
        await self.store.flush()

    async def hold(self) -> None:
        def found() -> list[tuple[str, str]]:
            claims = Claim.objects.filter(gpu__node__name=name_of(self.node), container__finished_at=None)
            return [(str(pk), uuid) for pk, uuid in claims.values_list("container_id", "gpu__uuid")]

        self.holders = [(id_, uuid, self.random.random() < self.size.busy) for id_, uuid in await self.store.ask(found)]

    def beat(self) -> None:
        progress = self.store.progress()
        self.store.node(
            seen_at=timezone.now(), engine_error="", late=round(self.random.random() / 100, 3),
            figures=self.store.figures.as_dict(**progress, turns=self.beats),
        )  # fmt: skip

    def alone(self) -> Iterator[None]:
        """A sign of life and nothing else."""
        self.beat()
        yield

    def second(self) -> Iterator[None]:
        """What is recorded within a second; yields after each of its steps."""
        self.beats += 1
        for step in range(STEPS):
            if step == 0:
                self._measured()
            elif step == 3:
                self.beat()
            elif step == 6 and self.beats % 2:
                for id_, _, busy in self.holders:
                    cpus = round(self.random.random() * 8, 2) if busy else 0.0
                    self.store.container(id_, cpus_used=cpus, memory_used=self.random.randrange(4096) << 20)
            for id_, uuid, busy in self.holders:
                if busy and self.random.random() < (LEASE + WAITS) / STEPS:
                    self._changed(id_, uuid)
            yield

    def _measured(self) -> None:
        at, roll = timezone.now().replace(microsecond=0), self.random.random
        self.had += 1 / 3
        for id_, uuid, busy in self.holders:
            used = 10 * GIB
            if busy and roll() < USE:
                used += self.random.randrange(1024) << 21
                self._use(id_, uuid, used)
            part = {"had": 1 / 3, "due": 1 / 3, "held_back": 0.1} if busy else {"had": 0.0, "due": 0.0}
            life = {"had": round(self.had, 1), "due": round(self.had, 1), "held_back": round(self.had / 3, 1)}
            lately = {"had_lately": round(20 + roll(), 1), "due_lately": 20.0, "held_back_lately": round(6 + roll(), 1)}
            busy_now = round(30 + 5 * roll()) if busy else 0
            more = {**life, **lately} if busy else {}
            self.store.claim(id_, uuid, granted=12 * GIB, peak=12 * GIB, unexplained=0, utilisation=busy_now, **more)
            self.store.sample(
                id_, uuid, at, used=used, peak=used, granted=12 * GIB, utilisation=busy_now, cpus_used=2 * roll(),
                memory_used=GIB, **part,
            )  # fmt: skip
        for uuid in self.cards:
            busy_now = round(80 + 20 * roll())
            real, power = 22 * GIB + (self.random.randrange(64) << 20), round(500 + 100 * roll(), 1)
            self.store.gpu(uuid, real=real, foreign=0, utilisation=busy_now, temperature=round(60 + 4 * roll()),
                           power=power, strangers=[])  # fmt: skip
            self.store.sample(None, uuid, at, used=22 * GIB, peak=22 * GIB, granted=24 * GIB, utilisation=busy_now)

    def _use(self, id_: str, uuid: str, used: int) -> None:
        self.store.event("accepted", id_, gpu=uuid, pid=4711, size=GIB, used_after=used, policy="fair")
        processes = [{"pid": 4711, "used": used, "real": used, "uncapped": False}]
        self.store.claim(id_, uuid, used=used, processes=processes)

    def _changed(self, id_: str, uuid: str) -> None:
        if self.random.random() < WAITS / (LEASE + WAITS):
            kind = self.random.choice(("suspended", "resumed"))
            self.store.event(kind, id_, gpu=uuid, pid=4711, size=GIB, policy="fair", waited=3.0 * (kind == "resumed"))
            self.store.claim(id_, uuid, waiting=GIB * (kind == "suspended"))
            self.store.suspended(id_, time.monotonic() if kind == "suspended" else None, 3.0)
        else:
            self._use(id_, uuid, 10 * GIB + (self.random.randrange(1024) << 20))


async def flood(hosts: list[Host], seconds: int) -> None:
    async def play(host: Host) -> None:
        for _ in range(seconds):
            for _ in host.second():
                if host.store._rows or host.store._events or host.store._samples:
                    await host.store.flush()

    await asyncio.gather(*map(play, hosts))


async def live(hosts: list[Host], nodes: int, seconds: float) -> None:
    """With the store's own loop that writes. How late a node's second begins at most is a figure, too."""
    end = time.monotonic() + seconds
    writing = [asyncio.create_task(host.store.run()) for host in hosts]

    async def play(host: Host, *, whole: bool) -> None:
        await asyncio.sleep(host.random.random() * (1 if whole else SELDOM))
        while (begun := time.monotonic()) < end:
            for step, _ in enumerate(host.second() if whole else host.alone(), 1):
                await asyncio.sleep(begun + step / STEPS - time.monotonic())
            await asyncio.sleep(begun + (1 if whole else SELDOM) - time.monotonic())

    await asyncio.gather(*(play(host, whole=place < nodes) for place, host in enumerate(hosts)))
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)
    for host in hosts:
        await host.store.flush()


def written(hosts: list[Host]) -> int:
    return sum(host.store.progress()["events_written"] for host in hosts)


async def main() -> None:
    size, first, count = Size(*map(json.loads, sys.argv[1].split(","))), int(sys.argv[2]), int(sys.argv[3])
    hosts = [Host(size, node) for node in range(first, first + count)]
    loop = asyncio.get_running_loop()
    while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        events, cpu, begun = written(hosts), resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        match words:
            case ["open"]:
                for host in hosts:
                    await host.open()
            case ["hold"]:
                for host in hosts:
                    await host.hold()
            case ["flood", seconds]:
                await flood(hosts, int(seconds))
            case ["live", nodes, seconds]:
                await live(hosts, int(nodes), float(seconds))
        now = resource.getrusage(resource.RUSAGE_SELF)
        fields: dict[str, Any] = {
            "wall": time.monotonic() - begun,
            "cpu": now.ru_utime + now.ru_stime - cpu.ru_utime - cpu.ru_stime,
            "events": written(hosts) - events,
        }
        print(json.dumps(fields), flush=True)
    for host in hosts:
        await host.store.close()


if __name__ == "__main__":
    asyncio.run(main())
