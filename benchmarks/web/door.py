"""What the door costs and holds: applications in the browser and ssh, with OpenSSH's own client (docs/apps.md, ssh.md).

    python -m benchmarks.web.door [--engine docker] [--mib 1024]

A scheduler, `manage.py rundoor` and one container whose program is an HTTP server: of local processes, or with
`--engine docker` (root, and a dockerd in PATH, of which it starts one of its own) in a container without a network.
Shown are processor time and memory of the door's process, and times as its clients see them. Processor time does not
count what else the host does; other times do, and the door's clients share the processors with it. What is known of
decisions is what a well-behaved program notices (benchmarks/bystander.py), which comes before all of these.
The exit code is 1 if a figure misses its bar.
"""

import argparse
import asyncio
import filecmp
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles

from benchmarks.live import Live, until
from benchmarks.web.door_lab import PEOPLE, Lab, Process, answered, first, opened
from tests.support.attacks import Bystander
from tests.support.card import ROOT
from tests.support.dockerd import private

MIB = 1 << 20
SOCKETS = 1000
STRANGERS = 300
FILES = 10_000
BATCHES = 6
missed: list[str] = []


def tell(
    what: str, figure: float, unit: str, bar: float | None = None, *, at_least: bool = False, also: str = ""
) -> None:
    said = ""
    if bar is not None:
        kept = figure >= bar if at_least else figure <= bar
        said = f"{'>=' if at_least else '<='} {bar:g}{'' if kept else '  MISSED'}"
        if not kept:
            missed.append(what)
    print(f"{what:<58}{figure:>9.2f} {unit:<9}{said:<14}{also}", flush=True)


def requests(lab: Lab, kept: int = 3000, new: int = 200) -> None:
    from django.conf import settings

    from web.console.frames import connect_to_port

    inner, _ = asyncio.run(connect_to_port(settings.GPUSHARE_HOME, lab.container.pk, lab.port))
    with inner, lab.enter() as outer:
        answered(outer, lab.asks())
        pairs = [(answered(inner, lab.asks()), answered(outer, lab.asks())) for _ in range(kept)]
        later = median(through - direct for direct, through in pairs)
        costs = []
        for _ in range(BATCHES):  # what else runs adds to each, and most to some
            with lab.costs() as cost:
                for _ in range(kept // BATCHES):
                    answered(outer, lab.asks())
            costs.append(cost() / (kept // BATCHES) * 1e6)
        said = f"the least of {BATCHES} times; median {median(costs):.0f}"
        tell("processor time of a request", min(costs), "us", 500, also=said)
        tell("first byte later than direct, connection kept", later * 1e3, "ms", 5)
        tell("  of 100 the slowest but one", quantiles([b - a for a, b in pairs], n=100)[98] * 1e3, "ms")
        found = []
        for _ in range(new):
            direct, begun = answered(inner, lab.asks()), time.perf_counter()
            with lab.enter() as fresh:
                answered(fresh, lab.asks())
                found.append(time.perf_counter() - begun - direct)
        tell("first byte later than direct, new connections throughout", median(found) * 1e3, "ms", 5)


def websockets(lab: Lab, seconds: float = 20) -> None:
    before, held = lab.door.memory(), []
    for n in range(SOCKETS):
        held.append(lab.enter())
        answered(held[-1], lab.asks(n % PEOPLE, "Connection: Upgrade", "Upgrade: websocket"))
    more = lab.door.memory() - before
    with lab.costs() as cost:
        time.sleep(seconds)
        share = cost() / seconds * 100
    for each in held:
        each.sendall(b"still here")
    assert all(each.recv(64) == b"still here" for each in held)
    for each in held:
        each.close()
    tell(f"{SOCKETS} idle WebSockets, memory", more, "MiB", 25, also=f"of {before + more:.0f} MiB in all")
    tell(f"{SOCKETS} idle WebSockets, of a processor", share, "%", 1)


def ssh(lab: Lab, mib: int) -> None:
    found = []
    for n in range(10):
        at = f"{lab.home}/at-{n}"
        found.append(lab.run("ssh", *lab.options, "-fNMS", at, "127.0.0.1"))
        subprocess.run(["ssh", "-S", at, "-O", "exit", "127.0.0.1"], check=True, capture_output=True)
    tell("sign-in by ssh", median(found) * 1e3, "ms", 300)
    size = str(mib * MIB)
    with lab.costs() as cost:
        took = lab.run("ssh", *lab.options, "127.0.0.1", f"head -c {size} /dev/zero", stdout=subprocess.DEVNULL)
    tell(
        f"ssh, {mib} MiB down", mib / cost(), "MiB/s", 60, at_least=True, also=f"a core; {mib / took:.0f} by the clock"
    )
    with lab.costs() as cost, subprocess.Popen(["head", "-c", size, "/dev/zero"], stdout=subprocess.PIPE) as zeros:
        took = lab.run("ssh", *lab.options, "127.0.0.1", "cat >/dev/null", stdin=zeros.stdout)
    tell(f"ssh, {mib} MiB up", mib / cost(), "MiB/s", 60, at_least=True, also=f"a core; {mib / took:.0f} by the clock")


def silent_strangers(lab: Lab) -> None:
    before = lab.door.memory()
    held = [socket.create_connection(("127.0.0.1", lab.ssh)) for _ in range(STRANGERS)]
    for each in held:
        each.settimeout(10)
        with suppress(OSError):  # it has given way to a newer one
            each.recv(64)
    more = lab.door.memory() - before
    lab.run("ssh", *lab.options, "127.0.0.1", "true")
    for each in held:
        each.close()
    tell(f"{STRANGERS} silent strangers at ssh, memory", more, "MiB", 3)


def files(lab: Lab, mib: int, folder: Path) -> None:
    """`folder`: in the container."""
    lab.run("ssh", *lab.options, "127.0.0.1", f"mkdir -p {folder}")
    peaks = []
    for size in (32, mib, mib):
        with (lab.home / "large").open("wb") as file:
            for _ in range(size):
                file.write(os.urandom(MIB))
        lab.door.forget_peak()
        with _peak_of("gpushare-sftp") as inner:
            up = lab.run("scp", "-q", *lab.options, "large", f"127.0.0.1:{folder}/large")
            down = lab.run("scp", "-q", *lab.options, f"127.0.0.1:{folder}/large", "back")
        assert filecmp.cmp(lab.home / "large", lab.home / "back", shallow=False)
        peaks.append((lab.door.memory("VmHWM"), inner()))
    (least, _), *more = peaks
    said = f"peaks {', '.join(f'{peak:.0f}' for peak, _ in peaks)} MiB; in the container {peaks[-1][1]:.1f}"
    tell(
        f"scp, {mib} MiB both ways, twice, against 32: memory",
        max(each for each, _ in more) - least,
        "MiB",
        32,
        also=said,
    )
    tell("  by the clock, up and down together", 2 * mib / (up + down), "MiB/s")
    tree = lab.home / "tree"
    for n in range(FILES):
        tree.joinpath(f"{n // 100}").mkdir(parents=True, exist_ok=True)
        tree.joinpath(f"{n // 100}/{n}").write_bytes(os.urandom(n % 2048))
    by = f"--rsh=ssh {' '.join(lab.options)}"
    alone = min(lab.run("rsync", "-a", f"{tree}/", f"{lab.home}/beside-{n}/") for n in range(2))
    took = lab.run("rsync", "-a", by, f"{tree}/", f"127.0.0.1:{folder}/tree/")
    again = lab.run("rsync", "-a", by, f"127.0.0.1:{folder}/tree/", "tree-back/")
    same = subprocess.run(["diff", "-r", tree, lab.home / "tree-back"], check=False).returncode == 0
    tell(
        f"rsync of {FILES} files, against rsync without ssh",
        took / alone,
        "times",
        also=f"{took:.1f} s up, {again:.1f} s down",
    )
    tell("  of them the same after there and back", FILES * same, "", FILES, at_least=True)


@contextmanager
def _peak_of(name: str) -> Iterator[Callable[[], float]]:
    """The most memory that a process of this name had meanwhile, in MiB."""
    found, over = [0.0], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/comm"):
                with suppress(OSError):
                    if path.read_text().strip() == name[:15]:
                        found.append(Process(int(path.parent.name)).memory("VmHWM"))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield lambda: max(found)
    finally:
        over.set()
        watching.join()


def reconnects(lab: Lab, times: int = 10) -> None:
    """VS Code: a shell without a terminal beside a SOCKS proxy, and a server that each new connection finds again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    starts = "test -e server || { (setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $! >server); }; cat server\n"
    pids = set()
    for _ in range(times):
        with subprocess.Popen(["ssh", *lab.options, "-T", "-D", f"127.0.0.1:{port}", "127.0.0.1", "sh"], bufsize=0,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:  # fmt: skip
            assert client.stdin
            assert client.stdout
            client.stdin.write(f"cd /tmp; {starts}".encode().replace(b"server", lab.container.pk.hex.encode()))
            pid = client.stdout.readline().decode().strip()
            client.stdin.write(f"kill -0 {pid} && echo {pid}\n".encode())
            pids.add(client.stdout.readline().decode().strip())
            with socket.create_connection(("127.0.0.1", port)) as by:
                by.sendall(b"\5\1\0" + b"\5\1\0\1\x7f\0\0\1" + lab.port.to_bytes(2))
                said = b""
                while len(said) < 12:
                    said += by.recv(64)
                answered(by, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.kill()
    tell(f"servers after {times} connections of VS Code's kind, cut off", len(pids - {""}), "", 1)


def decisions(live: Live, lab: Lab, seconds: float) -> None:
    """How long others' calls take while the door has all that it can do."""
    found = {}
    for what in ("the door idle", "the door full"):
        with first():
            asking = Bystander(live.home / "sockets" / str(lab.container.pk))
        with ExitStack() as stack:
            if what == "the door full":
                stack.enter_context(_load(lab))
                time.sleep(2)
            asking.forget()
            with lab.costs() as cost:
                time.sleep(seconds)
                share = cost() / seconds * 100
            took = asking.stop()
        found[what] = quantiles(took, n=100)[98] * 1e3
        said = f"median {median(took) * 1e3:.2f} of {len(took)}; the door had {share:.0f} % of a processor"
        tell(f"a decision's p99, {what}", found[what], "ms", also=said)
    tell("  full against idle", found["the door full"] - found["the door idle"], "ms", 1)


@contextmanager
def _load(lab: Lab) -> Iterator[None]:
    words = [sys.executable, "-c", "from benchmarks.web.door import flood; flood()", str(lab.http), lab.asks().decode()]
    copying = ["ssh", *lab.options, "127.0.0.1", "cat /dev/zero"]
    with subprocess.Popen(words, cwd=ROOT) as asking, subprocess.Popen(copying, stdout=subprocess.DEVNULL) as copied:
        yield
        for each in (asking, copied):
            each.kill()


def flood() -> None:
    """16 that ask again and again over one connection, and 16 of which each makes a new one each time."""
    http, asking = int(sys.argv[1]), sys.argv[2].encode()

    async def ask(*, again: bool) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", http)
                while True:
                    writer.write(asking)
                    await reader.readuntil(b"\r\n\r\nok")
                    if not again:
                        break
                writer.close()

    async def main() -> None:
        await asyncio.gather(*(ask(again=bool(n % 2)) for n in range(32)))

    asyncio.run(main())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=("process", "docker"), default="process")
    parser.add_argument("--mib", type=int, default=1024, help="that are copied each time")
    parser.add_argument("--seconds", type=float, default=20, help="that decisions are measured")
    asked = parser.parse_args()
    with ExitStack() as stack:
        address = stack.enter_context(private()).address if asked.engine == "docker" else ""
        live = stack.enter_context(Live(gpus="sim:1x64GiB", engine=asked.engine))
        lab = stack.enter_context(opened(live, address))
        print(f"engine {asked.engine}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", flush=True)
        until(lambda: lab.run("ssh", *lab.options, "127.0.0.1", "true") > 0, 60, "ssh")
        requests(lab)
        websockets(lab)
        ssh(lab, asked.mib)
        silent_strangers(lab)
        files(lab, asked.mib, Path("/tmp") if address else live.home / "there")
        reconnects(lab)
        if not address:
            decisions(live, lab, asked.seconds)
    if missed:
        print(f"Missed: {'; '.join(missed)}", file=sys.stderr)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
