"""How fast GPU memory goes to host memory and back by the driver's bare calls, in each way that a host could help.

    python -m tests.gpu.faster [--gib 8] [--times 3] [--seconds 400] [--out FOLDER] [--sim] [WAY …]

The driver writes its image into anonymous memory of the process itself. WAY (all, in this order, if none is named):
- host: how fast that memory can be had at all: 4 KiB pages and huge ones, written by one thread and by several
- plain: as the host is; what mappings are made meanwhile by the C library's mmap, and how large its pages are
- advised, prefaulted, both: the C library's mmap advises huge pages, writes with several threads, or both (faster.c)
- always, never, deferred: the host's /sys/kernel/mm/transparent_hugepage (put back afterwards)
- aligned: every size of multi-size pages at "always"
- glibc1, glibc2: glibc.malloc.hugetlb (2: the host reserves huge pages for it)
- node0, node1 …: all memory and processors of one NUMA node
- two, four: as many processes at once, with that part of the memory each; two-always: the first with huge pages too
Prints each figure as it comes, and writes FOLDER/faster.json (FOLDER: $OUT). `--sim` tries it on a simulated card.
"""

import argparse
import contextlib
import ctypes
import mmap
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.gpu.bare_calls import Calls, Found
from tests.support.appliance import ROOT

HUGE = Path("/sys/kernel/mm/transparent_hugepage")
RESERVED = Path("/proc/sys/vm/nr_hugepages")
NODES = Path("/sys/devices/system/node")
CHUNK = 1 << 28
GIB = 1 << 30
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE
SET_MEMPOLICY, BIND = 238, 2  # x86-64
THREADS = 8
TAKES = 3.0  # seconds of a GiB and a way at most, all times together


def program(gib: float) -> None:
    """Holds it, says so, and answers each line with whether what it looks at is right."""
    from tests.support.cuda import Cuda, c_size_t, c_uint, c_uint64

    cuda, chunks = Cuda(), []
    for index in range(int(gib * GIB) // CHUNK):
        address = cuda.alloc(CHUNK)
        cuda("cuMemsetD32_v2", c_uint64(address), c_uint(index * 7919 + 1), c_size_t(CHUNK // 4))
        chunks.append(address)
    cuda("cuCtxSynchronize")
    print("ready", flush=True)
    for _ in sys.stdin:
        right = all(
            int.from_bytes(cuda.read(address + at, 4), "little") == index * 7919 + 1
            for index, address in enumerate(chunks)
            for at in (0, CHUNK - 4, *(4 * random.randrange(CHUNK // 4) for _ in range(30)))
        )
        print("right" if right else "WRONG", flush=True)


class Trial:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.found = Found(options.out / "faster.json", options.seconds)
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
        if options.sim:
            import shim.sim

            state = folder / "card/state"
            shim.sim.create("sim:1x40GiB", state, ROOT / ".build")
            self.environment |= {"LD_LIBRARY_PATH": str(ROOT / ".build/sim"), "GPUSHARE_SIM": str(state)}
        self.library = folder / "faster.so"
        words = ["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", str(self.library), str(ROOT / "tests/gpu/faster.c")]
        subprocess.run(words, check=True)

    def run(self) -> None:
        states = {path.name: path.read_text().strip() for path in sorted(HUGE.glob("*")) if path.is_file()}
        self.found.say("huge pages", {name: states[name] for name in ("enabled", "defrag") if name in states})
        numa = [path.read_text().strip() for path in Path("/sys/bus/pci/drivers/nvidia").glob("*/numa_node")]
        nodes = [path.name for path in sorted(NODES.glob("node[0-9]*"))]
        self.found.say("nodes", {"of the host": nodes, "of cards": numa, "processors": os.cpu_count()})
        named = [*WAYS[:11], *nodes, *WAYS[11:]]
        for way in self.options.ways or named:
            if self.found.has_time(way, 5 + TAKES * self.options.gib):
                try:
                    self.play(way)
                except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
                    self.found.say(way, f"cannot be tried here: {error}")

    def play(self, way: str) -> None:
        mixed = " ".join(
            sorted({"advised": ["huge"], "prefaulted": ["prefault"], "both": ["huge", "prefault"]}.get(way, []))
        )
        log = self.folder / f"{way}.log"
        preload = {"LD_PRELOAD": str(self.library), "FASTER_LOG": str(log), "FASTER_THREADS": str(THREADS)}
        match way:
            case "host":
                self.host()
            case "plain" | "advised" | "prefaulted" | "both":
                self.time(way, preload | {"FASTER": mixed})
                its = sorted(set(log.read_text().split("\n")[:-1])) if log.exists() else []
                self.found.say(f"{way}: mapped by the C library", its[:12])
            case "always" | "never":
                with written({HUGE / "enabled": way}):
                    self.time(way)
            case "deferred":
                with written({HUGE / "enabled": "always", HUGE / "defrag": "always"}):
                    self.time(way)
            case "aligned":
                with written(dict.fromkeys(sorted(HUGE.glob("hugepages-*kB/enabled")), "always")):
                    self.time(way)
            case "glibc1":
                self.time(way, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
            case "glibc2":
                with written({RESERVED: str(int(self.options.gib * 512 * 1.1) + 512)}):
                    self.time(way, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=2"})
            case "two" | "four":
                self.time(way, processes={"two": 2, "four": 4}[way])
            case "two-always":
                with written({HUGE / "enabled": "always"}):
                    self.time(way, processes=2)
            case _:
                self.time(way, node=int(way.removeprefix("node")))

    def time(self, way: str, more: Mapping[str, str] | None = None, *, processes: int = 1, node: int = -1) -> None:
        """Seconds out and in of all together, each time."""
        gib = self.options.gib / processes
        with contextlib.ExitStack() as stack:
            programs = [stack.enter_context(self.program(gib, more or {}, node)) for _ in range(processes)]
            workers = [Calls(self.environment) for _ in programs]
            for worker in workers:
                stack.callback(worker.close)
            steps: tuple[tuple[str, ...], ...] = (("lock", "30000"), ("checkpoint",), ("restore",), ("unlock",))
            took: dict[str, list[float]] = {step[0]: [] for step in steps}
            pages, right = "", True
            for step in steps * self.options.times:
                begun = time.monotonic()
                for worker, process in zip(workers, programs, strict=True):
                    worker.begin(step[0], process.pid, *step[1:])
                if codes := [code for code, _ in [worker.done() for worker in workers] if code]:
                    raise RuntimeError(f"{step[0]}: CUDA error {codes}")
                took[step[0]].append(round(time.monotonic() - begun, 2))
                if step[0] == "checkpoint":
                    pages = size_of_pages(programs[0].pid)
                if step[0] == "unlock":
                    right &= all(looks(process) for process in programs)
        its = {"out": took["checkpoint"], "in": took["restore"], "pages while it is out": pages}
        self.found.say(way, its, right)

    @contextlib.contextmanager
    def program(self, gib: float, more: Mapping[str, str], node: int) -> Iterator[subprocess.Popen[str]]:
        words = [sys.executable, "-m", "tests.gpu.faster", "--program", str(gib)]
        where = (lambda: bind(node)) if node >= 0 else None
        with subprocess.Popen(
            words, cwd=ROOT, env={**self.environment, **more}, stdin=-1, stdout=-1, text=True, preexec_fn=where
        ) as process:
            try:
                assert process.stdout
                if process.stdout.readline() != "ready\n":
                    raise RuntimeError(f"its program ended: {process.wait(10)}")
                yield process
            finally:
                process.kill()

    def host(self) -> None:
        size = int(self.options.gib * GIB)
        for name, huge, threads in (("4 KiB", 0, 1), ("4 KiB", 0, THREADS), ("huge", 1, 1), ("huge", 1, THREADS)):
            took = []
            for _ in range(2):
                with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
                    memory.madvise(14 if huge else 15)  # MADV_HUGEPAGE, MADV_NOHUGEPAGE
                    begun, each = time.monotonic(), size // threads
                    parts = [
                        threading.Thread(target=populate, args=(memory, at * each, each)) for at in range(threads)
                    ]  # fmt: skip
                    for part in parts:
                        part.start()
                    for part in parts:
                        part.join()
                    took.append(round(time.monotonic() - begun, 2))
            self.found.say(f"host: {name} pages, {threads} threads", took)


def looks(process: subprocess.Popen[str]) -> bool:
    assert process.stdin
    assert process.stdout
    print("look", file=process.stdin, flush=True)
    return process.stdout.readline() == "right\n"


def populate(memory: mmap.mmap, at: int, size: int) -> None:
    """By the C library: Python's own keeps its lock."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory, at))
    if ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), POPULATE_WRITE):
        raise OSError("MADV_POPULATE_WRITE failed")


def size_of_pages(pid: int) -> str:
    rollup = dict(re.findall(r"(\w+): +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text()))
    largest = max(re.findall(r"^Rss: +(\d+) kB", Path(f"/proc/{pid}/smaps").read_text(), re.M), key=int)
    mib = {name: int(rollup.get(name, 0)) >> 10 for name in ("Rss", "AnonHugePages", "Private_Hugetlb")}
    return f"{mib} MiB, largest mapping {int(largest) >> 10} MiB"


def bind(node: int) -> None:
    listed = (NODES / f"node{node}/cpulist").read_text().strip()
    ranges = [part.split("-") for part in listed.split(",") if part]
    os.sched_setaffinity(0, {cpu for each in ranges for cpu in range(int(each[0]), int(each[-1]) + 1)})
    mask = ctypes.c_ulong(1 << node)
    ctypes.CDLL(None).syscall(SET_MEMPOLICY, BIND, ctypes.byref(mask), 64)


@contextlib.contextmanager
def written(settings: Mapping[Path, str]) -> Iterator[None]:
    """Kernel settings; what was there is put back. Raises OSError."""
    before: dict[Path, Any] = {}
    try:
        for path, value in settings.items():
            text = path.read_text()
            chosen = re.search(r"\[([\w+]+)\]", text)
            before[path] = chosen[1] if chosen else text
            path.write_text(value)
        yield
    finally:
        for path, value in before.items():
            with contextlib.suppress(OSError):
                path.write_text(value)


WAYS = [
    "host", "plain", "advised", "prefaulted", "both", "always", "never", "deferred", "two", "two-always", "four",
    "glibc1", "glibc2", "aligned",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", metavar="WAY")
    parser.add_argument("--program", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--gib", type=float, default=8.0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--sim", action="store_true")
    options = parser.parse_args()
    if options.program:
        program(options.program)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(options, Path(folder))
        trial.run()
    return 1 if trial.found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
