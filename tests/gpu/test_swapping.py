"""`pause --free` of PyTorch in Docker containers on a real card: no slower than the bare calls, right to the byte."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from scheduler.card.helper import CardHelper
from tests.gpu import host_image
from tests.gpu.conftest import VOLUMES, Appliance
from tests.gpu.host_image import PYTHON
from tests.gpu.swapped import GIB, LONG, Held, bare, card_empties, on_card

pytestmark = [pytest.mark.gpu, pytest.mark.docker, pytest.mark.timeout(500)]
TOUCHED = 64  # GiB of host memory: a virtual machine may get its own only as it is used, and that takes time
SLOWER = 1.1  # times what the bare calls take
STEPS = 0.15  # seconds more, for the rows that are written before each step
Record = Callable[[str], None]
MANAGED = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
codes = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
         cuda.cuMemAllocManaged(ctypes.byref(address), ctypes.c_size_t(1 << 30), 1)]
print(codes, flush=True)
for line in range(400):
    time.sleep(0.05)
    print(cuda.cuCtxSynchronize(), flush=True)
"""


@pytest.fixture(scope="session")
def host_memory(record: Record) -> None:
    begun = time.monotonic()
    fill = f"blocks = [b'x' * (1 << 30) for _ in range({TOUCHED})]"
    done = subprocess.run([sys.executable, "-c", fill], check=False)
    record(f"{TOUCHED} GiB of host memory touched in {time.monotonic() - begun:.0f} s (exit {done.returncode})")
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip()
    record(f"transparent huge pages: {huge}")


@pytest.fixture(scope="module")
def whole_card(
    tmp_path_factory: pytest.TempPathFactory, image: str, host_memory: None, record: Record
) -> Iterator[Appliance]:
    folder = tmp_path_factory.mktemp("swapping")
    results = Path(os.environ.get("GPU_TEST_RESULTS", str(folder)))
    roots = " ".join([*host_image.ROOTS, str(Path(__file__).parent), str(folder)])
    running = Appliance(
        folder / "home", os.environ.get("GPU_TEST_GPUS", "nvidia"), results / "appliance-swapping.log",
        GPUSHARE_VOLUME_ROOTS=roots, GPUSHARE_SWAP_MEMORY="80GiB", GPUSHARE_HOST_MEMORY="100GiB",
    )  # fmt: skip
    running.start()
    yield running
    running.stop()


def with_helper(play: Callable[[CardHelper], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        helper = CardHelper()
        try:
            await play(helper)
        finally:
            await helper.close()

    asyncio.run(run())


def bare_calls(pid: int) -> tuple[float, float]:
    """Seconds out and in again."""
    times: list[float] = []

    async def play(helper: CardHelper) -> None:
        await helper.state(pid, LONG)  # a worker is there
        for steps in ((helper.lock, helper.checkpoint), (helper.restore, helper.unlock)):
            begun = time.monotonic()
            for step in steps:
                await step(pid, LONG)
            times.append(time.monotonic() - begun)

    with_helper(play)
    return times[0], times[1]


@pytest.mark.parametrize(("gib", "rounds"), [(4, 4), (16, 2), (40, 2)])
def test_it_takes_no_longer_than_the_bare_calls(whole_card: Appliance, gib: int, rounds: int, record: Record) -> None:
    """In turns, so that what the host does meanwhile meets both."""
    held = Held(whole_card, whole_card.home.parent / f"held-{gib}", gib)
    figures: list[tuple[float, float, float, float]] = []
    with bare(whole_card.home.parent / f"bare-{gib}", gib) as (job, pid):
        for number in range(rounds):
            if number % 2:
                alone, ours = bare_calls(pid), (held.out(), held.back())
            else:
                ours, alone = (held.out(), held.back()), bare_calls(pid)
            figures.append((*alone, *ours))
            record(
                f"{gib} GiB of PyTorch: bare out {alone[0]:.2f} s, in {alone[1]:.2f} s; "
                f"a container's pause out {figures[-1][2]:.2f} s, in {figures[-1][3]:.2f} s"
            )
            job.is_right()
            held.is_right()
    held.end()
    bare_out, bare_in, out, back = (sum(each) for each in zip(*figures, strict=True))
    record(f"{gib} GiB: {out / bare_out:.3f} times the bare calls out, {back / bare_in:.3f} in; every byte right")
    assert out <= SLOWER * bare_out + STEPS * rounds
    assert back <= SLOWER * bare_in + STEPS * rounds


def test_a_limit_of_host_memory_below_what_it_has_on_the_card_is_raised_and_lowered(
    whole_card: Appliance, record: Record
) -> None:
    limit = 4 * GIB
    held = Held(whole_card, whole_card.home.parent / "limit", 8, memory=limit)
    client = docker.from_env()
    try:
        engine_id = whole_card.get(held.id)["engine_id"]

        def now() -> float:
            return client.api.inspect_container(engine_id)["HostConfig"]["Memory"] / GIB

        before, out, while_out = now(), held.out(), now()
        back = held.back()
        held.is_right()
        Appliance.until(lambda: now() == before, "the limit to be as it was")
        record(f"8 GiB on the card under a limit of {before:g} GiB: {while_out:.2f} GiB while out; "
               f"out {out:.2f} s, in {back:.2f} s, then {now():g} GiB; every byte right")  # fmt: skip
        assert before == limit / GIB < 8 < while_out
    finally:
        client.close()
        held.end()


def test_children_with_and_without_memory_on_the_card_go_on_with_it(whole_card: Appliance, record: Record) -> None:
    held = Held(whole_card, whole_card.home.parent / "workers", 2, "workers", gpu_memory=8 * GIB)
    assert len(on_card()) == 2
    figures = []
    for _ in range(3):
        out = held.out()
        assert not on_card()
        figures.append(f"out {out:.2f} s, in {held.back():.2f} s")
        held.is_right()
    record(
        f"2 GiB, a child with 0.5 GiB, a data loader with two workers: {'; '.join(figures)}; batches and bytes right"
    )
    held.end()


def test_managed_memory_is_refused_with_its_reason_and_goes_on(whole_card: Appliance, record: Record) -> None:
    container = whole_card.launch("managed", "", command=[PYTHON, "-c", MANAGED], volumes=VOLUMES, gpu_memory=3 * GIB)
    whole_card.until(lambda: "[0, 0, 0, 0]" in whole_card.logs(container), "it to hold managed memory")
    done, message = whole_card.command(container, "pause", free_memory=True)
    record(f"managed memory: {message}")
    assert not done
    assert "managed memory" in message
    assert whole_card.get(container)["state"] == "running"
    whole_card.state_becomes(container, "exited")
    lines = [line for line in whole_card.logs(container).splitlines() if line.isdigit()]
    assert set(lines) == {"0"}


def test_a_hundred_times_out_and_in(whole_card: Appliance, record: Record) -> None:
    held = Held(whole_card, whole_card.home.parent / "hundred", 0.25, gpu_memory=2 * GIB)
    begun, outs, backs = time.monotonic(), [], []
    for _ in range(100):
        outs.append(held.out())
        backs.append(held.back())
        held.is_right()
    outs.sort()
    backs.sort()
    record(
        f"100 times out and in, 0.25 GiB and a context, in {time.monotonic() - begun:.0f} s, each time every byte "
        f"right: out {outs[50]:.2f} s (median; most {outs[-1]:.2f}), in {backs[50]:.2f} s (most {backs[-1]:.2f})"
    )
    held.end()
    card_empties()
