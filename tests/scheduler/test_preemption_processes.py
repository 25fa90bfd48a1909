"""Holders give way and come back with real programs, on the simulated card; all else is in test_preemption.py."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host, SeparateScheduler, a_host
from tests.support.swapped import at_once, slowly
from web.models import Container, Swap

IDLE = 0.02  # minutes

# It holds memory and sleeps until somebody wants something of it; then it computes a little and looks at every byte.
NOTEBOOK = """
import hashlib, signal, sys
from tests.support.cuda import *
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
cuda, size = Cuda(), int(sys.argv[1])
address = cuda.alloc(size)
written = hashlib.sha256(b"written").digest() * (MIB // 32)
cuda.write(address + size - MIB, written)
print("holding", flush=True)
for cell in range(1, 10):
    if signal.sigwait([signal.SIGUSR1, signal.SIGUSR2]) == signal.SIGUSR2:
        cuda.free(cuda.alloc(MIB))
    assert cuda.read(address + size - MIB, MIB) == written
    print(f"cell {cell} is right", flush=True)
"""
WORDS = ("workload", "--bytes", "3GiB", "--check", "1MiB")


@pytest.fixture
async def lab(transactional_db: None, settings: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """A host with one simulated GPU of 5 GiB, on which everybody is idle a second after the start."""
    settings.GPUSHARE_IDLE_MINUTES = IDLE
    async with a_host(settings, tmp_path_factory.mktemp("host")) as host:
        yield host


async def notebook(host: Host, size: int = 3 * GIB, quota: int = 4 * GIB, **fields: object) -> Container:
    at_once()
    environment = {"PYTHONPATH": str(BUILD.parent)}
    words = (sys.executable, "-c", NOTEBOOK, str(size))
    container = await host.launch(*words, gpu_memory=quota, environment=environment, **fields)
    await host.says(container, "holding")
    return container


def run_cell(host: Host, container: Container, number: int = signal.SIGUSR1) -> None:
    (session,) = host.up.broker.live_containers[str(container.pk)].sessions.values()
    os.kill(session.pid, number)


async def gives_way(host: Host, container: Container) -> tuple[Container, Container]:
    """Somebody comes who needs what it has. Both, the first out and the other with its memory."""
    await eventually(lambda: host.up.activity._habits)  # how it waits while it is idle is known, as after a minute
    other, _ = await host.start_launch(*WORDS, "--hold", "600", gpu_memory=4 * GIB, name="training")
    await host.says(other, "holding")
    return await host.until(container, "swapped"), other


async def test_a_call_that_has_blocked_before_a_new_scheduler_looks_brings_it_back_all_the_same(lab: Host) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    habits = lab.home / "habits" / f"{container.pk}.json"
    await eventually(habits.exists)
    (session,) = lab.up.broker.live_containers[str(container.pk)].sessions.values()
    await lab.stop()
    os.kill(session.pid, signal.SIGUSR1)
    await eventually(lambda: waits_in_a_call(session.pid))
    await lab.start()
    await lab.command("kill", other)
    await lab.says(container, "cell 1 is right")
    await lab.until(container, "running")
    await eventually(lambda: not habits.exists())


def waits_in_a_call(pid: int) -> bool:
    """And no more for a signal."""
    return "sigtimedwait" not in Path(f"/proc/{pid}/wchan").read_text()


# The other two are in test_swapping_processes.py, where a person has it moved: the next scheduler finds it the same.
@pytest.mark.parametrize(
    "moment", [Swap.LEAVING, *(pytest.param(each, marks=pytest.mark.long) for each in (Swap.OUT, Swap.COMING))]
)
async def test_a_scheduler_killed_while_it_gives_way_leaves_nothing_half(lab: Host, moment: Swap) -> None:
    separate = SeparateScheduler(lab.home, GPUSHARE_IDLE_MINUTES=str(IDLE))
    container = await notebook(lab)
    (session,) = lab.up.broker.live_containers[str(container.pk)].sessions.values()
    await lab.stop()
    if moment is Swap.LEAVING:
        slowly()
    await separate.start()
    other, _ = await lab.start_launch(*WORDS, "--hold", "600", gpu_memory=4 * GIB)
    if moment is Swap.COMING:
        await lab.says(other, "holding")
        slowly()
        os.kill(session.pid, signal.SIGUSR1)
        killing = asyncio.create_task(lab.command("kill", other))  # answered now, or by the next scheduler
    try:
        await lab.moved_to(container, moment)
    finally:
        await separate.kill()
    at_once()
    await lab.start()
    if moment is not Swap.COMING:
        await lab.says(other, "holding")
        await lab.command("kill", other)
        run_cell(lab, container)
    else:
        await killing
    await lab.says(container, "cell 1 is right")
    assert (await lab.until(container, "running")).swap == ""
