"""What one scrape of /metrics costs with a thousand live containers, and whether a decision waits for it.

    python -m benchmarks.web.metrics [SCRAPES [SECONDS]]

First in this process, through Django's whole request, over SQLite: 1,000 containers on 8 GPUs, a third of them waiting.
Told are the median and the worst of all scrapes after the first, what one takes of a core, the bytes, the series. The
bar: a median of 50 ms. Then an appliance with as many, of whose scheduler a process asks for memory fifty times a
second: what its answers took and how late its loop was for SECONDS without a scrape, with one a second, and with one
after the other. The bar: scraped each second, the median answer takes at most 0.5 ms more than unscraped.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

CONTAINERS, GPUS, BAR = 1000, 8, 0.050
NEVER, EACH_SECOND, ALWAYS = "unscraped", "each second", "one after another"
PACES = {NEVER: None, EACH_SECOND: 1.0, ALWAYS: 0.0}  # seconds from one scrape to the next
SLOWER = 0.5  # ms


def main(scrapes: int) -> int:
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(GPUSHARE_HOME=home, DJANGO_SETTINGS_MODULE="appliance.settings", GPUSHARE_LOG="ERROR")
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        return _measure(scrapes, _fill())


def _fill() -> str:
    """A token of somebody who may look."""
    from django.contrib.auth.models import User
    from django.utils import timezone

    from scheduler.figures import Figures
    from web.models import Claim, Container, Gpu, Node
    from web.people import tokens

    now, gib = timezone.now(), 2**30
    told = Figures().told(turns=0, events_written=0, events_behind=0, rows_behind=0, samples_behind=0)
    node = Node.objects.create(name="node", engine="docker", policy="fair", seen_at=now, started_at=now, figures=told)
    gpus = Gpu.objects.bulk_create(
        Gpu(node=node, uuid=f"GPU-8a3f0c1e-{n:04}-4d5e-9f00-112233445566", index=n, name="NVIDIA H200",
            total=140 * gib, capacity=139 * gib, real=n * gib, utilisation=n, temperature=40, power=300.0)
        for n in range(GPUS)
    )  # fmt: skip
    owners = [User.objects.create(username=f"person-{n}") for n in range(50)]
    made = Container.objects.bulk_create(
        Container(name=f"training-{n}", owner=owners[n % 50], node=node, image="local", gpu_memory=gib, colour=n % 10,
                  started_at=now, suspended_since=now if n % 3 == 0 else None)
        for n in range(CONTAINERS)
    )  # fmt: skip
    part = gib // 8
    Claim.objects.bulk_create(
        Claim(container=each, gpu=gpus[n % GPUS], quota=part, granted=part, used=part, peak=part, had=1.5)
        for n, each in enumerate(made)
    )
    return tokens.make(owners[0])[1]


def _measure(scrapes: int, token: str) -> int:
    from django.test import Client

    client = Client(headers={"authorization": f"Token {token}", "accept": "application/openmetrics-text"})
    took, cpu = [], time.process_time()
    for _ in range(scrapes + 1):
        begun = time.perf_counter()
        answer = client.get("/metrics", headers={"host": "localhost"})
        took.append(time.perf_counter() - begun)
        assert answer.status_code == 200, answer.content
    cpu = (time.process_time() - cpu) / len(took)
    series = sum(not line.startswith(b"#") for line in answer.content.splitlines())
    median, worst = statistics.median(took[1:]), max(took[1:])
    size = len(answer.content) >> 10
    print(f"{CONTAINERS} containers, {series} series, {size} KiB, {1000 * cpu:.1f} ms of a core")
    print(f"median {1000 * median:.1f} ms, worst {1000 * worst:.1f} ms of {scrapes}; the bar {1000 * BAR:.0f} ms")
    return int(median > BAR)


def _meanwhile(seconds: float) -> int:
    from benchmarks.web.rest import EMPTY, asking, fill, manage, spent, told
    from tests.support.appliance import Appliance, http

    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-"))) / "var"
        late = home.parent / "late"
        program = ("-m", "benchmarks.lateness", str(late))
        appliance = Appliance(home, gpus="sim:1x1024GiB", program=program, GPUSHARE_BUDGET_REQUESTS_A_SECOND="100000")
        stack.callback(appliance.close)
        token = fill(home, CONTAINERS - 2)[0]  # and two that ask
        stack.callback(manage, home, EMPTY)
        finished = stack.enter_context(asking(appliance))
        spans: dict[str, list[tuple[float, float]]] = {}
        for kind, pause in PACES.items():
            begun, took, web = time.time(), [], appliance.parts()["web"]
            cpu = spent(web)
            while (at := time.time()) < begun + seconds:
                if pause is not None:
                    asked = time.perf_counter()
                    http.get(f"{appliance.url}/metrics", headers={"Authorization": f"Token {token}"}).raise_for_status()
                    took.append(time.perf_counter() - asked)
                time.sleep(max(0.0, at + (seconds if pause is None else pause) - time.time()))
            spans[kind] = [(begun, time.time())]
            scraped = f"{len(took)} scrapes, median {1000 * statistics.median(took):.1f} ms" if took else "none"
            print(f"{kind:>18}: {scraped}; the web process took {spent(web) - cpu:.1f} s of a core")
        answers = [(at, ms * 1e3) for at, ms in finished()]
        lateness = [(float(at), float(ms)) for at, ms in map(str.split, late.read_text().splitlines()[:-1])]
    print("the scheduler meanwhile, in ms (median / p99 / longest):")
    middle = {}
    for kind, those in spans.items():
        print(f"{kind:>18}: {told('answers to NEED', those, answers)};  {told('its loop late', those, lateness)}")
        middle[kind] = statistics.median(ms for at, ms in answers if those[0][0] <= at <= those[0][1])
    return int(middle[EACH_SECOND] > middle[NEVER] + SLOWER)


if __name__ == "__main__":
    failed = main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    sys.exit(_meanwhile(float(sys.argv[2]) if len(sys.argv) > 2 else 10.0) or failed)
