"""What the lists that everybody asks for cost: alone, and with 32 clients at once, while the scheduler decides.

    python -m benchmarks.rest [SECONDS]          (root or not; the embedded start, process engine, simulated card)

The database holds 150 live containers, 50 of which wait, and 50 GPUs; each list is asked for 50 rows. Meanwhile a
process of a live container asks for more memory fifty times a second. Told are: the median of one client's
answers, the answers a second that one client and 32 get, what each took of the web process's CPU (which a neighbour
on the machine does not change as it does the rate), how long the scheduler's took, how late its loop was.
The bars: 6 ms alone; 32 clients get no fewer than one, and at least 200 a second.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.appliance import ROOT, Appliance, until
from tests.support.raw import Raw

CLIENTS = 32
PACE = 0.02  # seconds between two questions to the scheduler
LISTS = ("gpus/?page_size=50", "queue/?page_size=50", "containers/?page_size=50", "containers/?live=true&page_size=50")
FILL = """
from django.contrib.auth.models import User
from django.utils import timezone
from web.models import Claim, Container, Gpu, Node
now, GIB = timezone.now(), 2**30
node = Node.objects.create(name="another", engine="docker", seen_at=now)
Gpu.objects.bulk_create(Gpu(node=node, uuid=f"GPU-rest-{n}", index=n, name="NVIDIA H200", total=140 * GIB,
                            capacity=139 * GIB, real=n * GIB, utilisation=n) for n in range(49))
gpus = list(Gpu.objects.all())
owners = [User.objects.create(username=f"person-{n}") for n in range(10)]
made = [Container(name=f"filler-{n}", owner=owners[n % 10], node=node, image="local", gpu_memory=GIB, colour=n % 10,
                  started_at=now, command=["python", "train.py", "--seed", str(n)], environment={"SEED": str(n)},
                  **({"suspended_since": now, "queue_position": n // 3 + 1, "queue_bytes": GIB,
                      "queue_reason": "It waits for 1 GiB; 512 MiB are free."} if n % 3 == 0 else {}))
        for n in range(149)]
Container.objects.bulk_create(made)
part = GIB // 4
Claim.objects.bulk_create(Claim(container=c, gpu=gpus[n % 50], quota=GIB, granted=part, used=part, peak=part)
                          for n, c in enumerate(made))
"""


def fill(home: Path) -> None:
    """Rows of containers that the scheduler does not know, and so leaves alone."""
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", FILL]
    subprocess.run(command, check=True, env={**os.environ, "GPUSHARE_HOME": str(home)})


# ---- the scheduler's own work meanwhile ----


def ask(directory: Path, stop: Any, found: Any) -> None:
    """A process that asks for a MiB now and then: seconds that each answer took, with the time."""
    raw = Raw(directory)
    raw.socket.settimeout(60)
    raw.hello()
    took, serial = [], 0
    while not stop.wait(PACE):
        begun = time.perf_counter()
        raw.need(1 << 20, serial := serial + 1)
        assert raw.read() is not None
        took.append((time.time(), time.perf_counter() - begun))
    found.put(took)


@contextmanager
def asking(appliance: Appliance) -> Iterator[Callable[[], list[tuple[float, float]]]]:
    """Two containers whose quotas do not fit together, so that no lease is ever so large that nobody would ask."""
    rows = [appliance.launch("sleep", "3600", name=f"asks-{n}", gpu_memory="600GiB") for n in range(2)]
    context = get_context("spawn")
    stop, found = context.Event(), context.Queue()
    process = context.Process(target=ask, args=(appliance.home / "sockets" / rows[0]["id"], stop, found))
    process.start()

    def finished() -> list[tuple[float, float]]:
        stop.set()
        took: list[tuple[float, float]] = found.get(timeout=60)
        process.join(10)
        return took

    yield finished
    stop.set()
    process.join(10)


# ---- the clients ----


async def one(url: str, path: str, token: str, until_: float, took: list[float]) -> None:
    """Asks again and again over one connection. As little Python as can be: it shares the cores with the server."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    request = f"GET /api/v1/{path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Token {token}\r\n\r\n".encode()
    while (begun := time.perf_counter()) < until_:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        took.append(time.perf_counter() - begun)
    writer.close()


def spent(pid: int) -> float:
    """Seconds of CPU that this process has used."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(appliance: Appliance, path: str, clients: int, seconds: float) -> tuple[list[float], float]:
    """Seconds that each answer took, and seconds of the web process's CPU to an answer."""
    took: list[float] = []
    web = appliance.parts()["web"]
    before = spent(web)

    async def run() -> None:
        until_ = time.perf_counter() + seconds
        await asyncio.gather(*(one(appliance.url, path, appliance.token, until_, took) for _ in range(clients)))

    asyncio.run(run())
    return took, (spent(web) - before) / len(took)


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else 0.0


def told(name: str, spans: list[tuple[float, float]], values: list[tuple[float, float]]) -> str:
    """Milliseconds, of what falls into these spans of time."""
    inside = [value for at, value in values if any(begin <= at <= end for begin, end in spans)]
    middle = statistics.median(inside) if inside else 0.0
    return f"{name} {middle:.2f} / {p99(inside):.2f} / {max(inside, default=0):.1f}"


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    good = True
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-"))) / "var"
        late = home.parent / "late"
        program = ("-m", "benchmarks.lateness", str(late))
        appliance = Appliance(home, gpus="sim:1x1024GiB", program=program, GPUSHARE_BUDGET_REQUESTS_A_SECOND="100000")
        stack.callback(appliance.close)
        fill(home)
        stack.callback(lambda: subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c",
             "from web.models import Container, Claim\n"
             "Claim.objects.filter(container__name__startswith='filler').delete()\n"
             "Container.objects.filter(name__startswith='filler').delete()"],
            check=True, env={**os.environ, "GPUSHARE_HOME": str(home)},
        ))  # fmt: skip
        finished = stack.enter_context(asking(appliance))
        until(lambda: len(appliance.containers(live="true", page_size="1000")) == 151)
        spans: dict[int, list[tuple[float, float]]] = {0: [], 1: [], CLIENTS: []}
        began = time.time()
        time.sleep(seconds)
        spans[0].append((began, time.time()))
        print(f"{'':40}{'median':>8}{'p99':>8}{'CPU':>8}{'a second':>10}{f'{CLIENTS} clients':>12}"
              f"{'median':>8}{'CPU':>8}   (ms)")  # fmt: skip
        for path in LISTS:
            rates, cpu = {}, {}
            for clients in (1, CLIENTS):
                measure(appliance, path, clients, 0.5)
                began = time.time()
                rates[clients], cpu[clients] = measure(appliance, path, clients, seconds)
                spans[clients].append((began, time.time()))
            alone, many = rates[1], rates[CLIENTS]
            middle, rate, together = statistics.median(alone), len(alone) / seconds, len(many) / seconds
            print(f"{path:40}{middle * 1e3:>8.2f}{p99(alone) * 1e3:>8.2f}{cpu[1] * 1e3:>8.2f}{rate:>10.0f}"
                  f"{together:>12.0f}{statistics.median(many) * 1e3:>8.1f}{cpu[CLIENTS] * 1e3:>8.2f}",
                  flush=True)  # fmt: skip
            good &= middle <= 0.006 and together >= max(rate, 200)
        answers = [(at, took * 1e3) for at, took in finished()]
        lateness = [(float(at), float(ms)) for at, ms in map(str.split, late.read_text().splitlines()[:-1])]
    print("\nthe scheduler meanwhile, in ms (median / p99 / longest):")
    for clients, those in spans.items():
        decided, late_by = told("answers to NEED", those, answers), told("its loop late", those, lateness)
        print(f"{clients:>3} clients: {decided};  {late_by}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
