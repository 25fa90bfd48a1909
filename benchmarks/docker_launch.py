"""What a container's creation costs through our engine, against plain `docker run -d` of the same options.

    python -m benchmarks.docker_launch [ROUNDS]        (root; starts a dockerd of its own, or uses DOCKER_HOST)

With a dockerd of its own this is done twice: with Docker's usual network, a bridge, as on any host that was not set up
otherwise; and without a network, where making a container takes half as long and ours weighs twice as much.
They alternate, and the median of the paired differences is what counts: the machine's own drift is in all of them. Ours
is measured twice: at the engine, with all that it adds (the shim, its preload file, the socket folder, the simulated
card); and over REST, from the request to the answer that it runs, with all checks, records and decisions in between.
The bar: at most 30 ms and 8 % more. ConVGPU's paper: 62 ms and 15 %.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import docker
import httpx

from scheduler.engines.base import Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.settings import DockerSettings
from scheduler.engines.runtime_environment import RuntimeEnvironment, Simulation
from tests.support.appliance import Appliance
from tests.support.dockerd import IMAGE, build_image, private

MEMORY = 1 << 30
# It lives on after its start, as jobs do, and has ended and been taken away before the next one is launched.
COMMAND = ["sleep", "0.4"]
SETTLE = 1.0  # seconds between two launches
PLAIN = ["run", "-d", "--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--memory", str(MEMORY),
         "--memory-swap", str(MEMORY), "--cpus", "1", "--pids-limit", "4096", "--shm-size", str(1 << 30),
         IMAGE, *COMMAND]  # fmt: skip


def a_launch(home: Path) -> Launch:
    id_ = str(uuid.uuid4())
    sockets = home / "sockets" / id_  # by its name the engine knows a container for one of its own
    sockets.mkdir()
    return Launch(id=id_, name="bench", image=IMAGE, command=COMMAND, gpus=["GPU-0"], socket_dir=sockets,
                  log_path=home / "logs" / id_, memory=MEMORY, cpus=1.0)  # fmt: skip


def plain_run(address: str) -> float:
    """Seconds."""
    began = time.perf_counter()
    subprocess.run(["docker", "-H", address, *PLAIN], check=True, capture_output=True)
    return time.perf_counter() - began


def over_rest(client: httpx.Client) -> float:
    """Seconds."""
    body = {
        "image": IMAGE,
        "command": COMMAND,
        "gpu_memory": "64MiB",
        "memory": MEMORY,
        "cpus": 1,
        "remove_when_done": True,
    }
    began = time.perf_counter()
    answer = client.post("/api/v1/containers/", json=body)
    assert answer.status_code == 201, answer.text
    return time.perf_counter() - began


async def measure(address: str, home: Path, client: httpx.Client, rounds: int) -> list[tuple[float, float, float]]:
    """Triples of seconds: plain, at the engine, over REST."""
    for folder in ("sockets", "sim", "card"):
        (home / folder).mkdir()
    shim = home / "libgpushare.so"
    shim.touch()  # `sleep` in the image is linked statically: what is mounted there is never loaded
    engine = DockerEngine(
        home, RuntimeEnvironment(shim, Simulation(home / "sim", home / "card" / "state")), DockerSettings(address)
    )
    await engine.start()
    found = []
    try:
        for _ in range(rounds):
            plain = await asyncio.to_thread(plain_run, address)
            await asyncio.sleep(SETTLE)
            began = time.perf_counter()
            status = await engine.launch(a_launch(home))
            ours = time.perf_counter() - began
            await asyncio.sleep(SETTLE)
            await engine.remove(status.engine_id)
            await asyncio.sleep(SETTLE)
            found.append((plain, ours, await asyncio.to_thread(over_rest, client)))
            await asyncio.sleep(SETTLE)
    finally:
        await engine.close()
    return found


def compare(address: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        api = docker.APIClient(address, version="auto")
        build_image(api, IMAGE)
        api.close()
        appliance = Appliance(Path(home) / "var", GPUSHARE_ENGINE="docker", GPUSHARE_DOCKER_HOST=address)
        headers = {"Authorization": f"Token {appliance.token}"}
        with httpx.Client(base_url=appliance.url, headers=headers, timeout=30) as client:
            over_rest(client)
            found = asyncio.run(measure(address, Path(home), client, rounds))
        appliance.close()
    plain, ours, rest = zip(*found, strict=True)
    print(f"docker run -d     {statistics.median(plain) * 1e3:7.1f} ms   (median of {rounds})")
    for name, column in (("at our engine", ours), ("over REST", rest)):
        more = statistics.median(b - a for a, b in zip(plain, column, strict=True))
        ratio = statistics.median(b / a for a, b in zip(plain, column, strict=True))
        paired = f"paired {more * 1e3:+.1f} ms, {100 * (ratio - 1):+.1f} %   (bar: +30 ms, +8 %)"
        print(f"{name:<17} {statistics.median(column) * 1e3:7.1f} ms   {paired}", flush=True)


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "appliance.settings")  # the engine reads its budgets there
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    if address := os.environ.get("DOCKER_HOST"):
        compare(address, rounds)
        return
    for network in (True, False):
        print("with Docker's usual network:" if network else "without a network:", flush=True)
        with private(network) as engine:
            compare(engine.address, rounds)


if __name__ == "__main__":
    main()
