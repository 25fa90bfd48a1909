"""What the lists that everybody asks for cost: alone, and with 32 clients at once, while the scheduler decides.

    python -m benchmarks.web.rest [SECONDS [postgres]]     (the embedded start, process engine, simulated card)

`postgres`: with a PostgreSQL and a Redis of its own, as in production, else with SQLite.

The database holds 150 live containers, 50 of which wait, and 50 GPUs; each list is asked for 50 rows. Meanwhile a
process of a live container asks for more memory fifty times a second, so that the database changes some sixteen times
a second. Shown are: the answers a second that one client gets, 32 of one person, and 32 of a person each; their median;
what an answer took of the web process's CPU (which a neighbour on the machine changes less than the rate); how long the
scheduler's took, how late its loop was. The bars: 6 ms alone; 32 clients get at least 200 a second, of one person or
of a person each.
"""

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
from tests.support.postgres import running_postgres
from tests.support.raw import Raw
from tests.support.redis_server import running_redis

CLIENTS = 32
NOBODY, ALONE, ONES, EACH = "no client", "one client", f"{CLIENTS} of one person", f"{CLIENTS} people"
PACE = 0.02  # seconds between two questions to the scheduler
LISTS = ("gpus/?page_size=50", "queue/?page_size=50", "containers/?page_size=50", "containers/?live=true&page_size=50")
FILL = """
from django.contrib.auth.models import User
from django.utils import timezone
from web.models import Claim, Container, Gpu, Node
from web.people import tokens
now, GIB = timezone.now(), 2**30
node = Node.objects.create(name="another", engine="docker", seen_at=now)
Gpu.objects.bulk_create(Gpu(node=node, uuid=f"GPU-rest-{n}", index=n, name="NVIDIA H200", total=140 * GIB,
                            capacity=139 * GIB, real=n * GIB, utilisation=n) for n in range(49))
gpus = list(Gpu.objects.all())
owners = [User.objects.create(username=f"person-{n}") for n in range(32)]
made = [Container(name=f"filler-{n}", owner=owners[n % 32], node=node, image="local", gpu_memory=GIB, colour=n % 10,
                  started_at=now, command=["python", "train.py", "--seed", str(n)], environment={"SEED": str(n)},
                  **({"suspended_since": now, "queue_position": n // 3 + 1, "queue_bytes": GIB,
                      "queue_reason": "It waits for 1 GiB; 512 MiB are free."} if n % 3 == 0 else {}))
        for n in range(FILLERS)]
Container.objects.bulk_create(made)
part = GIB // 4
Claim.objects.bulk_create(Claim(container=c, gpu=gpus[n % 50], quota=GIB, granted=part, used=part, peak=part)
                          for n, c in enumerate(made))
print("\\n".join(tokens.make(owner)[1] for owner in owners))
"""
EMPTY = """
from web.models import Claim, Container
Claim.objects.filter(container__name__startswith="filler").delete()
Container.objects.filter(name__startswith="filler").delete()
"""


def manage(home: Path, program: str) -> str:
    """What this program printed, run beside the appliance in its database."""
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", program]
    environ = {**os.environ, "GPUSHARE_HOME": str(home)}
    return subprocess.run(command, check=True, env=environ, stdout=subprocess.PIPE, text=True).stdout


def fill(home: Path, fillers: int = 149) -> list[str]:
    """Rows of containers that the scheduler does not know, and so leaves alone. The tokens of 32 people."""
    return manage(home, FILL.replace("FILLERS", str(fillers))).split()


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
    """Two containers whose quotas exceed the card together, so that no lease is ever so large that nobody would ask."""
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


def measure(appliance: Appliance, path: str, tokens: Sequence[str], seconds: float) -> tuple[list[float], float]:
    """A client to each token: seconds that each answer took, and seconds of the web process's CPU to an answer."""
    took: list[float] = []
    web = appliance.parts()["web"]
    before = spent(web)

    async def run() -> None:
        until_ = time.perf_counter() + seconds
        await asyncio.gather(*(one(appliance.url, path, token, until_, took) for token in tokens))

    asyncio.run(run())
    return took, (spent(web) - before) / len(took)


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else 0.0


def figures_of(name: str, spans: list[tuple[float, float]], values: list[tuple[float, float]]) -> str:
    """Milliseconds, of what falls into these spans of time."""
    inside = [value for at, value in values if any(begin <= at <= end for begin, end in spans)]
    middle = statistics.median(inside) if inside else 0.0
    return f"{name} {middle:.2f} / {p99(inside):.2f} / {max(inside, default=0):.1f}"


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    good = True
    with ExitStack() as stack:
        if "postgres" in sys.argv:
            os.environ["DATABASE_URL"] = stack.enter_context(running_postgres()).url
            os.environ["REDIS_URL"] = stack.enter_context(running_redis()).url
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-"))) / "var"
        late = home.parent / "late"
        program = ("-m", "benchmarks.lateness", str(late))
        appliance = Appliance(home, gpus="sim:1x1024GiB", program=program, GPUSHARE_BUDGET_REQUESTS_A_SECOND="100000")
        stack.callback(appliance.close)
        people = fill(home)
        stack.callback(manage, home, EMPTY)
        finished = stack.enter_context(asking(appliance))
        until(lambda: len(appliance.containers(live="true", page_size="1000")) == 151)
        kinds = {ALONE: people[:1], ONES: people[:1] * CLIENTS, EACH: people}
        spans: dict[str, list[tuple[float, float]]] = {NOBODY: [], **{kind: [] for kind in kinds}}
        began = time.time()
        time.sleep(seconds)
        spans[NOBODY].append((began, time.time()))
        print(f"{'answers a second, median and CPU in ms':40}" + "".join(f"{kind:>28}" for kind in kinds))
        for path in LISTS:
            line = f"{path:40}"
            for kind, tokens in kinds.items():
                measure(appliance, path, tokens, 0.5)
                began = time.time()
                took, cpu = measure(appliance, path, tokens, seconds)
                spans[kind].append((began, time.time()))
                rate, middle = len(took) / seconds, statistics.median(took)
                good &= middle <= 0.006 if kind is ALONE else rate >= 200
                line += f"{rate:>14.0f}{middle * 1e3:>7.2f}{cpu * 1e3:>7.2f}"
            print(line, flush=True)
        answers = [(at, took * 1e3) for at, took in finished()]
        lateness = [(float(at), float(ms)) for at, ms in map(str.split, late.read_text().splitlines()[:-1])]
    print("\nthe scheduler meanwhile, in ms (median / p99 / longest):")
    for kind, those in spans.items():
        decided, late_by = figures_of("answers to NEED", those, answers), figures_of("its loop late", those, lateness)
        print(f"{kind:>22}: {decided};  {late_by}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
