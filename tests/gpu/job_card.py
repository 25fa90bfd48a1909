"""Holds `GIB` of patterns on one card, and looks at every byte when it is asked.

    job_card.py FOLDER GIB torch|jax|cupy|graphs|sim [all] [by=CARD] [works] [small]

Each number that somebody writes to FOLDER/ask is answered by a line in FOLDER/said: "NUMBER right", or "NUMBER WRONG";
"NUMBER look" by what can be seen and used of cards from here. The first line is "0 right" as soon as it holds them.
`graphs`: what it holds is changed by a CUDA graph each time. `all`: it sees every card of the host, and takes its own
by UUID (NVIDIA_VISIBLE_DEVICES). `by`: it sees its own by this number or UUID alone. `works`: it computes all the time.
`small`: none of its pages is a huge one.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SET_THP_DISABLE = 41
folder, gib, kind = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if "all" in sys.argv:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
if by := [word.removeprefix("by=") for word in sys.argv if word.startswith("by=")]:
    os.environ["CUDA_VISIBLE_DEVICES"] = by[0]
if "small" in sys.argv:
    assert ctypes.CDLL(None).prctl(SET_THP_DISABLE, 1, 0, 0, 0) == 0
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
if cpus := os.environ.get("CPUS", ""):
    os.sched_setaffinity(0, map(int, cpus.split()))
NUMBERS = 1 << 26  # int32 in a chunk: 256 MiB
CHUNKS = int(4 * gib)
NVIDIA, MINORS = 195, range(8)
COUNT = """
import ctypes, json
cuda, count, uuids = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), []
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
for device in range(count.value):
    uuid = ctypes.create_string_buffer(16)
    cuda.cuDeviceGetUuid(uuid, device)
    uuids.append(uuid.raw.hex())
print(json.dumps([code, uuids]))
"""


def torch_and_card() -> tuple[Any, Any]:
    import torch

    cards: dict[str, int] = {}
    for index in range(torch.cuda.device_count()):
        try:
            cards[f"GPU-{torch.cuda.get_device_properties(index).uuid}"] = index
        except RuntimeError as error:  # one that the container does not have: the shim says nothing of it
            print(f"GPU {index}: {error}", flush=True)
    its = os.environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",")[0]
    print(f"torch sees {cards}, its own is {its}", flush=True)
    return torch, torch.device("cuda", cards.get(its, 0))


def with_torch() -> Callable[[], bool]:
    torch, device = torch_and_card()
    chunks: list[Any] = []

    def pattern(index: int) -> Any:
        return torch.arange(NUMBERS, dtype=torch.int32, device=device).mul_(2 * index + 1)

    def right() -> bool:
        while len(chunks) < CHUNKS:
            chunks.append(pattern(len(chunks)))
        found = all(torch.equal(chunk, pattern(index)) for index, chunk in enumerate(chunks))
        torch.cuda.empty_cache()
        return found

    return right


def with_graphs() -> Callable[[], bool]:
    """Each replay makes 3 x + 1 of each number x, modulo 2³²."""
    torch, device = torch_and_card()
    torch.cuda.set_device(device)
    chunks = [torch.arange(NUMBERS, dtype=torch.int32, device=device) for _ in range(CHUNKS)]
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        for chunk in chunks:
            chunk.mul_(3).add_(1)
    by, more = 1, 0

    def right() -> bool:
        nonlocal by, more
        graph.replay()
        by, more = by * 3 % 2**32, (more * 3 + 1) % 2**32
        signed = [number - 2**32 * (number >= 2**31) for number in (by, more)]
        wanted = torch.arange(NUMBERS, dtype=torch.int32, device=device).mul_(signed[0]).add_(signed[1])
        return all(torch.equal(chunk, wanted) for chunk in chunks)

    return right


def with_jax() -> Callable[[], bool]:
    import jax
    import jax.numpy as jnp

    pattern = jax.jit(lambda by: jnp.arange(NUMBERS, dtype=jnp.int32) * by)
    same = jax.jit(lambda chunk, by: (chunk == jnp.arange(NUMBERS, dtype=jnp.int32) * by).all())
    chunks = [pattern(2 * index + 1) for index in range(CHUNKS)]
    return lambda: all(bool(same(chunk, 2 * index + 1)) for index, chunk in enumerate(chunks))


def with_cupy() -> Callable[[], bool]:
    import cupy

    its = os.environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",")[0].replace("-", "").removeprefix("GPU")
    for index in range(cupy.cuda.runtime.getDeviceCount()):
        if bytes(cupy.cuda.runtime.getDeviceProperties(index)["uuid"])[:16].hex() == its:
            cupy.cuda.Device(index).use()

    def pattern(index: int) -> Any:
        return cupy.arange(NUMBERS, dtype=cupy.int32) * cupy.int32(2 * index + 1)

    chunks = [pattern(index) for index in range(CHUNKS)]

    def right() -> bool:
        found = all(bool((chunk == pattern(index)).all()) for index, chunk in enumerate(chunks))
        cupy.get_default_memory_pool().free_all_blocks()
        return found

    return right


def with_sim() -> Callable[[], bool]:
    from tests.support.cuda import MIB, Cuda

    cuda, size = Cuda(), int(gib * (1 << 30))
    address, written = cuda.alloc(size), os.urandom(MIB)
    cuda.write(address + size - MIB, written)
    return lambda: bool(cuda.read(address + size - MIB, MIB) == written)


def reached(minor: int) -> str:
    """What comes of making and opening the node of a card; "open" if nothing is in the way."""
    path = folder / f"node{minor}"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(NVIDIA, minor))
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    finally:
        path.unlink(missing_ok=True)
    return "open"


def look() -> str:
    """Without a blank: the nodes that are there, what a new process' CUDA counts, what making other nodes leads to."""
    counted = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=False, timeout=60)
    nodes = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    fields = {"nodes": nodes, "cuda": counted.stdout.strip(), "made": sorted({reached(minor) for minor in MINORS})}
    return json.dumps(fields, separators=(",", ":")).replace(" ", "")


def say(line: str) -> None:
    with (folder / "said").open("a") as said:
        said.write(line + "\n")


WITH = {"sim": with_sim, "jax": with_jax, "cupy": with_cupy, "graphs": with_graphs}
right = WITH.get(kind, with_torch)()
say(f"0 {'right' if right() else 'WRONG'}")
always = True  # right, while it works
while True:
    try:
        number, *what = (folder / "ask").read_text().split()
    except FileNotFoundError:
        if "works" in sys.argv:
            always = right() and always
        time.sleep(0.0 if "works" in sys.argv else 0.02)
        continue
    (folder / "ask").unlink()
    say(f"{number} {look() if what else 'right' if right() and always else 'WRONG'}")
