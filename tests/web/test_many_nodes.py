"""With hundreds of nodes nothing is asked once a node, and only what changed is sent: counted, not timed."""

import asyncio
import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from tests.support.events import EventKind, append
from tests.support.eventually import eventually
from tests.support.machine import GIB, make_container
from tests.support.people import client_for, make_user, signed_in
from web.live import snapshot
from web.live.feed import Feed
from web.models import Claim, Container, Gpu, Node
from web.services import attention

pytestmark = pytest.mark.django_db
CARDS = 2
FIGURES = {"decisions": list(range(500))}


def make_nodes(count: int, **fields: Any) -> list[Node]:
    now = timezone.now() + timedelta(hours=1)
    nodes = [Node(name=f"gpu{number:03}", engine="docker", seen_at=now, figures=FIGURES) for number in range(count)]
    Node.objects.bulk_create(nodes)
    sizes = {"total": 80 * GIB, "capacity": 80 * GIB, "most": 80 * GIB, "free": 80 * GIB, **fields}
    Gpu.objects.bulk_create(
        Gpu(node=node, uuid=f"GPU-{node.name}-{index}", index=index, name="H100", **sizes)
        for node in nodes for index in range(CARDS)
    )  # fmt: skip
    return nodes


def queries(ask: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as asked:
        ask()
    return [each["sql"] for each in asked]


@contextmanager
def made() -> Iterator[Counter[str]]:
    """The records that are made of rows inside, by model."""
    count: Counter[str] = Counter()

    def note(sender: type, **_: Any) -> None:
        count[sender.__name__] += 1

    post_init.connect(note)
    try:
        yield count
    finally:
        post_init.disconnect(note)


def test_nodes_are_listed_with_as_many_queries_and_without_their_figures(client, ada):
    nodes = make_nodes(3)
    make_container(ada, "a", nodes[1].gpus.get(index=0), quota=3 * GIB, node=nodes[1])
    make_container(ada, "b", nodes[1].gpus.get(index=1), quota=4 * GIB, node=nodes[1])
    make_container(ada, "over", nodes[1].gpus.get(index=1), quota=9 * GIB, finished_at=timezone.now())
    Gpu.objects.filter(node=nodes[2], index=1).update(present=False)
    get = lambda: client.get("/api/v1/nodes/", {"page_size": 1000})  # noqa: E731
    get()  # a token's first use is noted
    few, rows = queries(get), get().json()["results"]
    assert [(each["gpus"], each["capacity"] // GIB, each["promised"] // GIB) for each in rows] == [
        (2, 160, 0), (2, 160, 7), (1, 80, 0),
    ]  # fmt: skip
    for number in range(3, 60):
        Node.objects.create(name=f"gpu{number:03}", figures=FIGURES, outdated=["It has known holes."])
    many = queries(get)
    assert len(many) == len(few)
    assert not [sql for sql in many if '"figures"' in sql]
    assert get().json()["count"] == 60


def test_what_needs_somebody_is_found_without_a_record_for_each_card(ada):
    nodes = make_nodes(3)
    few = queries(attention.items)
    Node.objects.all().delete()
    nodes = make_nodes(40)
    assert len(queries(attention.items)) == len(few)
    hot = Gpu.objects.filter(uuid="GPU-gpu007-1")
    hot.update(hot_since=timezone.now(), temperature=99)
    gone = Gpu.objects.filter(uuid="GPU-gpu009-0")
    make_container(ada, "a", gone.get(), node=nodes[9])
    gone.update(present=False)
    with made() as count:
        items = attention.items()
    assert [(item.kind, item.gpu.uuid) for item in items if item.gpu] == [
        ("gpu_gone", "GPU-gpu009-0"), ("hot", "GPU-gpu007-1"),
    ]  # fmt: skip
    assert "GPU 1 of gpu007 is at 99 °C" in items[1].message
    assert count["Gpu"] == 2
    assert not [sql for sql in queries(attention.items) if '"web_node"."figures"' in sql and "web_gpu" in sql]


def test_a_second_s_change_is_the_fields_that_changed(ada):
    """Also of what a container has of its GPUs; and what counts up each second is not sent at all."""
    nodes = make_nodes(2)
    first, second = nodes[0].gpus.order_by("index")
    both = make_container(ada, "both", first, node=nodes[0])
    Claim.objects.create(container=both, gpu=second, quota=GIB)
    other = make_container(ada, "other", second, node=nodes[0])
    before = snapshot.read()
    Claim.objects.filter(container=both, gpu=first).update(used=GIB, had=7.0, due=7.0, held_back=1.0)
    Gpu.objects.update(real=GIB, foreign=1)
    after = snapshot.read()
    change = {"containers": {str(both.pk): {"gpus": {first.uuid: {"used": GIB}}}}}
    assert snapshot.delta(before, after) == change
    assert len(json.dumps(change)) < 150
    Claim.objects.filter(container=both, gpu=second).delete()
    last = snapshot.read()
    assert snapshot.delta(after, last) == {"containers": {str(both.pk): {"gpus": {second.uuid: None}}}}
    Container.objects.filter(pk=other.pk).delete()
    new = make_container(ada, "new", first, node=nodes[0])
    changes = snapshot.delta(last, snapshot.read())["containers"]
    assert changes[str(other.pk)] is None
    assert changes[str(new.pk)]["gpus"][first.uuid]["quota"] == GIB


def test_the_feed_reads_at_most_half_of_the_time_however_many_hints_come():
    took, reads = 0.1, 6
    begun: list[float] = []

    async def read() -> dict[str, Any]:
        begun.append(time.monotonic())
        await asyncio.sleep(took)
        return {"node": {}, **{section: {} for section in snapshot.SECTIONS}}

    async def run() -> None:
        feed = Feed()
        feed.read_snapshot, feed.read_attention, feed.attended = read, dict, float("inf")
        feed.state = await read()
        begun.clear()
        reading = asyncio.create_task(feed._read())
        await eventually(lambda: feed.hint.set() or len(begun) >= reads, every=0.001)
        reading.cancel()

    asyncio.run(run())
    assert begun[-1] - begun[0] >= (reads - 1) * 2 * took


def test_the_history_offers_the_cards_of_one_node():
    make_nodes(30)
    browser = signed_in(make_user("ada"))
    page = browser.get("/history/").content.decode()
    assert page.count('<option value="GPU-') == CARDS
    assert page.count('<option value="gpu0') == 30
    chosen = lambda query: browser.get("/history/", query).context["chosen"].uuid  # noqa: E731
    assert chosen({"gpu": "GPU-gpu004-1"}) == "GPU-gpu004-1"
    assert chosen({"node": "gpu004", "gpu": "GPU-gpu004-1"}) == "GPU-gpu004-1"
    assert chosen({"node": "gpu005", "gpu": "GPU-gpu004-1"}) == "GPU-gpu005-0"
    assert chosen({"node": "nonsense"}) == "GPU-gpu000-0"
    asked = queries(lambda: browser.get("/history/", {"gpu": "GPU-gpu004-1"}))
    assert not [sql for sql in asked if '"web_gpu"' in sql and '"figures"' in sql]


def whole(answer: Any) -> str:
    async def read() -> bytes:
        return b"".join([part async for part in answer])

    return asyncio.run(read()).decode()


def test_reports_are_grouped_by_node_on_the_page_as_csv_and_over_rest():
    ada, start = make_user("ada"), datetime(2026, 11, 20, 12, tzinfo=UTC)
    nodes = make_nodes(12)
    for node in nodes:
        container = make_container(ada, f"on-{node.name}", node.gpus.first(), node=node, started_at=start)
        append(container, start, EventKind.ACCEPTED, node.gpus.first(), bytes=GIB, used_after=2 * GIB)
        hours = 1 + nodes.index(node)
        append(container, start + timedelta(hours=hours), EventKind.ENDED)
        Container.objects.update(created_at=start, finished_at=start + timedelta(hours=12))
    expected = {node.name: 2.0 * (1 + place) for place, node in enumerate(nodes)}
    rest = client_for(ada)
    asked = {"from": "2026-11-20T00:00:00Z", "to": "2026-11-21T00:00:00Z", "group_by": "node"}
    answer = rest.get("/api/v1/reports/allocations/", asked).json()
    assert {row["group"]: row["vram_gib_hours"] for row in answer["rows"]} == expected
    assert answer["rows"][0]["group"] == "gpu011"
    lines = whole(rest.get("/api/v1/reports/allocations/", {**asked, "format": "csv"})).splitlines()
    rows = list(csv.DictReader(lines))
    assert {row["node"]: float(row["vram_gib_hours"]) for row in rows} == expected
    browser = signed_in(ada)
    days = {"from": "2026-11-20", "to": "2026-11-20", "group_by": "node"}
    page = browser.get("/reports/", days)
    assert {row["group"]: row["vram_gib_hours"] for row in page.context["rows"]} == expected
    text = whole(browser.get("/reports/", {**days, "format": "csv"}))
    assert [line.split(",")[0] for line in text.splitlines()][:2] == ["node", "gpu011"]
    report = lambda: rest.get("/api/v1/reports/allocations/", asked)  # noqa: E731
    many = len(queries(report))
    Container.objects.exclude(node__in=nodes[:2]).update(node=nodes[0])
    assert len(queries(report)) == many
