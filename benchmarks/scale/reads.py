"""What is read of a large lab: the live feed, lists, pages, the queue, the history of a card, reports, the roll-up."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from benchmarks.scale.lab import Lab, Watch, memory_of, name_of, uuid_of
from benchmarks.scale.writes import Schedulers

if TYPE_CHECKING:
    from tests.support.site import Site

TURNS = 3
LISTS = (
    "nodes/?page_size=50", "nodes/?page_size=1000", "gpus/?page_size=50", "gpus/?page_size=1000",
    "containers/?live=true&page_size=50", "containers/?live=true&page_size=1000",
    f"containers/?live=true&node={name_of(7)}", "queue/?page_size=50", "queue/?page_size=1000", "attention/",
)  # fmt: skip
PAGES = ("/", "/containers/rows/", "/queue/", "/launch/", "/history/", "/reports/")

# Minutes of the last day and seconds of the last minutes, of every claim and every card, by one statement each.
PAST = """
INSERT INTO web_usagesample (at, span, gpu_id, container_id, used, peak, granted, utilisation, suspended, had, due)
SELECT at, %(span)s, gpu, container, held, held, held, 50, 0, had * %(span)s, had * %(span)s
FROM generate_series(%(begin)s::timestamptz, %(end)s::timestamptz, make_interval(secs => %(span)s)) AS at,
     (SELECT gpu_id AS gpu, container_id AS container, used AS held, 1 / 3.0 AS had FROM web_claim
      UNION ALL SELECT id, NULL, real, NULL FROM web_gpu) AS what
"""
# What such containers tell of their use, for so long before now.
EVENTS = """
INSERT INTO web_allocationevent
       (at, kind, container_id, gpu_id, pid, bytes, used_after, waited, policy, detail, seal_id)
SELECT at, 'accepted', container_id, gpu_id, 4711, 1 << 30, used + (random() * 1e9)::bigint, 0, 'fair', '',
       (SELECT max(number) FROM web_seal)
FROM generate_series(%(begin)s::timestamptz, %(end)s::timestamptz, %(pause)s * interval '1 second') AS at, web_claim
"""


def timed(what: Callable[[], Any], turns: int = TURNS) -> float:
    """Seconds, the median of so many turns."""
    took = []
    for _ in range(turns):
        begun = time.perf_counter()
        what()
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def counted(what: Callable[[], Any]) -> int:
    """Queries."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as queries:
        what()
    return len(queries)


def feed(them: Schedulers) -> None:
    """What a reader of the feed does each time, and how much all that changes within a second is."""
    from web.live import snapshot

    them.do("flood", 1)
    first = snapshot.read()
    them.do("flood", 1)
    second = snapshot.read()
    change = snapshot.delta(first, second)
    sizes = {name: len(json.dumps(part)) for name, part in change.items()}
    print("\nthe live feed:")
    print(f"  everything           {len(json.dumps(first)) / 1e6:8.2f} MB")
    print(f"  a second's changes   {sum(sizes.values()) / 1e6:8.2f} MB: "
          + ", ".join(f"{name} {size / 1e3:.0f} kB" for name, size in sizes.items()))  # fmt: skip
    for name, what in {
        "to read it": snapshot.read,
        "to compare": lambda: snapshot.delta(first, second),
        "to write changes": lambda: json.dumps(change),
        "to write everything": lambda: json.dumps(first),
        "who needs somebody": snapshot.needs_somebody,
    }.items():
        print(f"  {name:20} {1e3 * timed(what):8.0f} ms, {counted(what)} queries", flush=True)


def lists(lab: Lab, them: Schedulers, site: Site) -> None:
    """Lists over REST and pages, while all nodes are alive."""
    from tests.support.site import person
    from web.people import tokens

    admin = person("admin", "admin")
    cookie = site.cookie(admin)
    them.live(0, 30)
    print(f"\n{'over HTTP':46}{'ms':>8}{'kB':>9}")
    with httpx.Client(base_url=site.url, timeout=120) as http:
        asked = [(f"/api/v1/{path}", {"Authorization": f"Token {tokens.make(admin)[1]}"}) for path in LISTS]
        asked += [(path, {"Cookie": f"{cookie['name']}={cookie['value']}"}) for path in PAGES]
        for path, headers in asked:
            took = timed(partial(http.get, path, headers=headers))
            said = http.get(path, headers=headers)
            wrong = "" if said.status_code == 200 else f"  {said.status_code}"
            print(f"{path:46}{1e3 * took:8.0f}{len(said.content) / 1e3:9.0f}{wrong}", flush=True)
    them.result()


def watchers(lab: Lab, them: Schedulers, site: Site, seconds: float) -> None:
    """What the web process takes while a part of the nodes lives and somebody watches."""
    import asyncio

    from websockets.asyncio.client import connect

    from tests.support.site import person

    cookie = site.cookie(person("admin", "admin"))
    headers = {"Cookie": f"{cookie['name']}={cookie['value']}", "Origin": site.url}

    async def watch(until: float) -> tuple[int, int]:
        count = size = 0
        address = site.url.replace("http", "ws") + "/ws/dashboard/"
        async with connect(address, additional_headers=headers, max_size=None) as socket:
            await socket.recv()
            while (left := until - time.monotonic()) > 0:
                try:
                    text = await asyncio.wait_for(socket.recv(), left)
                except TimeoutError:
                    break
                count, size = count + 1, size + len(text)
        return count, size

    print("\nthe web process while somebody watches:")
    for nodes in (0, lab.size.nodes // 30, lab.size.nodes // 10):
        them.live(nodes, seconds + 4)
        time.sleep(2)
        with Watch(lab, web=site.process.pid) as seen:
            count, size = asyncio.run(watch(time.monotonic() + seconds))
        them.result()
        cpu = {name: spent / seen.wall for name, spent in seen.cpu.items()}
        print(
            f"  {nodes:4} nodes busy: web {cpu['web']:.2f}, postgres {cpu['postgres']:.2f}, redis {cpu['redis']:.2f} "
            f"cores; {count / seen.wall:.1f} messages and {size / seen.wall / 1e3:.0f} kB a second; "
            f"{memory_of(site.process.pid) / 1e6:.0f} MB of RAM",
            flush=True,
        )


def past(lab: Lab, hours: float, minutes: float, event_hours: float) -> None:
    """A day, or a part of it: what it is, and what is read of it."""
    from django.contrib.auth.models import User
    from django.utils import timezone

    from web.history import reports, rollup, samples
    from web.history.marks import marks
    from web.models import Gpu, Node, UsageSample

    now = timezone.now().replace(second=0, microsecond=0)
    begun = time.monotonic()
    import psycopg

    with psycopg.connect(lab.postgres.url, autocommit=True) as connection:
        begin = now - timedelta(hours=hours)
        connection.execute("DELETE FROM web_usagesample")
        connection.execute(PAST, {"span": 60, "begin": begin, "end": now - timedelta(minutes=minutes + 1)})
        connection.execute(PAST, {"span": 1, "begin": now - timedelta(minutes=minutes), "end": now})
        connection.execute("UPDATE web_container SET created_at = %s, started_at = %s", (begin, begin))
        since = now - timedelta(hours=event_hours)
        connection.execute(EVENTS, {"begin": since, "end": now, "pause": 4.7})
        connection.execute("VACUUM ANALYZE")
    count = lab.query("SELECT count(*) FROM web_usagesample")
    events = lab.query("SELECT count(*) FROM web_allocationevent")
    took = time.monotonic() - begun
    print(
        f"\n{hours:g} h by the minute, {minutes:g} min by the second: {count / 1e6:.1f} million samples, and "
        f"{event_hours:g} h of events: {events / 1e6:.2f} million (made in {took:.0f} s)", flush=True,
    )  # fmt: skip
    gpu = Gpu.objects.get(uuid=uuid_of(7, 3))
    node = Node.objects.get(name=name_of(7))
    last = UsageSample.Span.SECOND, now - timedelta(minutes=minutes / 2)
    for name, what in {
        "a card's last hour": lambda: samples.card(gpu),
        "a card's day": lambda: samples.holders(gpu, now - timedelta(days=1), now),
        "what is marked in it": lambda: marks(gpu, now - timedelta(days=1), now),
        "who held a card once": lambda: samples.moment(gpu, last[1]),
        "a node's roll-up": lambda: rollup.roll_up(timezone.now(), node.pk),
        "computed in the day": lambda: list(reports._computed("", now - timedelta(days=1), now)),
        "one person's, by image": lambda: reports.report(now - timedelta(days=1), now, "image", "person-007"),
        "report by user": lambda: reports.report(now - timedelta(days=1), now),
        "report by node": lambda: reports.report(now - timedelta(days=1), now, "node"),
    }.items():
        print(f"  {name:24} {1e3 * timed(what, 1):9.0f} ms, {counted(what)} queries", flush=True)
    assert User.objects.exists()
