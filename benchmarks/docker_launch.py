"""What a container's creation costs through our engine, against plain `docker run -d` of the same options.

    python -m benchmarks.docker_launch [ROUNDS]        (root; starts a dockerd of its own, or uses DOCKER_HOST)

The two alternate, and the median of the paired differences is what counts: a machine's own drift is in both. Ours
includes everything that the engine adds (the shim, its preload file, the socket folder, the simulated card).
The bar: at most 30 ms and 8 % more. ConVGPU's paper: 62 ms and 15 %.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from scheduler.engines.base import Launch
from scheduler.engines.docker import DockerEngine, DockerSettings
from scheduler.engines.outfit import Outfit, Simulation
from tests.support.dockerd import IMAGE, Dockerd, build_image

MEMORY = 1 << 30
PLAIN = ["run", "-d", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--memory", str(MEMORY),
         "--memory-swap", str(MEMORY), "--cpus", "1", "--pids-limit", "4096", "--shm-size", str(1 << 30),
         IMAGE, "true"]  # fmt: skip
SETTLE = 0.3  # seconds between two launches, for the one before to end


@contextmanager
def engine_address() -> Iterator[str]:
    if address := os.environ.get("DOCKER_HOST"):
        yield address
        return
    private = Dockerd(Path(tempfile.mkdtemp(prefix="dockerd-")))
    private.start()
    try:
        yield private.address
    finally:
        private.stop()
        shutil.rmtree(private.folder, ignore_errors=True)


def a_launch(home: Path) -> Launch:
    id_ = str(uuid.uuid4())
    return Launch(
        id_, "bench", IMAGE, ["true"], ["GPU-0"], home / "sockets", home / "logs" / id_, memory=MEMORY, cpus=1.0
    )


def plain_run(address: str) -> float:
    """Seconds."""
    began = time.perf_counter()
    subprocess.run(["docker", "-H", address, *PLAIN], check=True, capture_output=True)
    return time.perf_counter() - began


async def measure(address: str, home: Path, rounds: int) -> list[tuple[float, float]]:
    """Pairs of seconds: plain, ours."""
    for folder in ("sockets", "sim", "card"):
        (home / folder).mkdir()
    shim = home / "libgpushare.so"
    shim.touch()  # `true` in the image is linked statically: what is mounted there is never loaded
    engine = DockerEngine(
        home, Outfit(shim, Simulation(home / "sim", home / "card" / "state")), DockerSettings(address)
    )
    await engine.start()
    pairs = []
    try:
        for _ in range(rounds):
            plain = await asyncio.to_thread(plain_run, address)
            await asyncio.sleep(SETTLE)
            began = time.perf_counter()
            sighting = await engine.launch(a_launch(home))
            pairs.append((plain, time.perf_counter() - began))
            await asyncio.sleep(SETTLE)
            await engine.remove(sighting.engine_id)
    finally:
        await engine.close()
    return pairs


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with engine_address() as address, tempfile.TemporaryDirectory() as home:
        client = docker.APIClient(address, version="auto")
        build_image(client, IMAGE)
        client.close()
        pairs = asyncio.run(measure(address, Path(home), rounds))
    plain, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    more = statistics.median(b - a for a, b in pairs)
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"docker run -d    {plain * 1e3:7.1f} ms   (median of {rounds})")
    print(f"through gpushare {ours * 1e3:7.1f} ms")
    print(f"paired           {more * 1e3:+7.1f} ms, {100 * (ratio - 1):+.1f} %   (bar: +30 ms, +8 %)")


if __name__ == "__main__":
    main()
