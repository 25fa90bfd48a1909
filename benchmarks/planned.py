"""10,000 planned launches: what the scheduler keeps of them, what a decision takes, and a page of them.

    python manage.py shell -c "from benchmarks.planned import main; main()"    (in a home of its own)

Prints, in CPU time: MiB that the scheduler grows by, ms of the longest decision, ms of the page and of REST's list.
"""

import asyncio
import os
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from scheduler.containers.planner import Planner
from scheduler.core.arbiter import handle
from scheduler.core.events import ContainerAdded
from scheduler.core.state import Gpu, State
from web.models import Gpu as GpuRow
from web.models import Node, Planned
from web.spec.planned import PlannedSpec
from web.spec.requests import FIELDS

MANY, PEOPLE, GIB = 10_000, 40, 1 << 30


def rows(node: Node) -> None:
    people = [User.objects.get_or_create(username=f"person{number}")[0] for number in range(PEOPLE)]
    asked = PlannedSpec.parse({"image": "local", "command": ["python", "train.py"], "queue": True})
    spec = {name: asked[name] for name in FIELDS}
    Planned.objects.bulk_create(
        Planned(name=f"job{number}", owner=people[number % PEOPLE], node=node, spec=spec, quota=(1 + number % 60) * GIB,
                priority=number % 3)
        for number in range(MANY)
    )  # fmt: skip


class Store:
    """Writes at once."""

    here = 0

    async def write(self, query: Any, *arguments: Any) -> Any:
        return query(*arguments)

    ask = write

    async def flush(self) -> None: ...


async def decide(node: Node) -> None:
    gpus = {f"GPU-{number}": Gpu(f"GPU-{number}", 80 * GIB, 80 * GIB) for number in range(8)}
    state = State(gpus=gpus)
    store = Store()
    store.here = node.pk
    broker = SimpleNamespace(state=state, live_containers={}, planned={}, now=time.monotonic)
    shared: Any = SimpleNamespace(store=store, broker=broker)
    planner = Planner(shared, lambda: None)
    tracemalloc.start()
    await planner._hear_of_changes()
    print(f"{tracemalloc.get_traced_memory()[0] / 2**20:.1f} MiB for {len(planner._plans)} planned launches")
    tracemalloc.stop()
    longest, now, begins, events = 0.0, time.monotonic() + 700, 0, 1  # all are due
    while events:
        events, steps = 0, planner._queue.steps(lambda: broker.state, now)
        while True:
            begun = time.thread_time()
            event = next(steps, None)
            broker.state = handle(broker.state, event)[0] if event else broker.state
            longest = max(longest, time.thread_time() - begun)
            if event is None:
                break
            events += 1
        for its, cards in planner._queue.promised(broker.state):
            planner._queue.drop(its.id)
            begins += 1
            broker.state, _ = handle(
                broker.state, ContainerAdded(now, its.container, dict.fromkeys(cards, its.shape.quota), its.owner)
            )
    print(f"{1000 * longest:.1f} ms for the longest decision; {begins} begin, {len(broker.state.waiting)} wait")
    begun = time.thread_time()
    planner._places()
    print(f"{1000 * (time.thread_time() - begun):.1f} ms for the places of the first")


def page() -> None:
    browser = Client(headers={"host": "localhost"})
    browser.force_login(User.objects.get_or_create(username="looks")[0])
    for address in ("/queue/", "/queue/?page=200", "/api/v1/planned/"):
        browser.get(address)
        begun = time.thread_time()
        assert browser.get(address).status_code == 200
        print(f"{1000 * (time.thread_time() - begun):.0f} ms for {address}")


def main() -> None:
    node = Node.objects.get_or_create(name="bench")[0]
    GpuRow.objects.get_or_create(
        uuid="GPU-0", defaults={"node": node, "index": 0, "name": "Card", "total": 1, "capacity": 1}
    )
    rows(node)
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # nothing else runs in this loop
    asyncio.run(decide(node))
    page()
