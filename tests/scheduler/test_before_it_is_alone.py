"""While somebody of the scheduler before is still there, nobody is stopped for a turn: and nobody waits for that."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time

import pytest

from scheduler.card.turns import EARLY
from tests.scheduler.test_turns import computing, goes_on, take_turns
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host
from tests.support.swapped import at_once


@pytest.mark.parametrize("free_memory", [pytest.param(True, marks=pytest.mark.long), False])
async def test_a_pause_is_not_held_up_by_a_stop_that_waits_for_the_last_scheduler(
    host: Host, free_memory: bool
) -> None:
    at_once()
    await host.stop()
    last = os.open(host.home / "guardian.lock", os.O_RDONLY)
    fcntl.flock(last, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await host.start()
    one, two = [await computing(host) for _ in range(2)]
    parts = host.up.turns._parts
    await eventually(lambda: {str(one.pk), str(two.pk)} <= parts.keys())
    assert all(EARLY in part.barred and part.task is None for part in parts.values())
    begun = time.monotonic()
    asyncio.get_running_loop().call_later(9.0, os.close, last)
    answer = await host.command("pause", one, free_memory=free_memory)
    took = time.monotonic() - begun
    assert answer.outcome == "done", answer.message
    assert took < (20 if free_memory else 5)
    await host.command("resume", one)
    await goes_on(host, one, two)
    await take_turns(host, one, two)
    assert not await host.events(one, "not_stopped")


ASKS = """
import time
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(MIB)
last, longest = time.monotonic(), 0
print("holding", flush=True)
while True:
    cuda("cuCtxSynchronize")
    last, before = time.monotonic(), last
    if last - before > longest:
        longest = last - before
        print("longest", longest, flush=True)
    time.sleep(0.01)
"""


async def test_whoever_asks_its_card_is_not_held_back_while_its_move_waits_for_the_last_scheduler(host: Host) -> None:
    at_once()
    await host.stop()
    last = os.open(host.home / "guardian.lock", os.O_RDONLY)
    fcntl.flock(last, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await host.start()
    container = await host.launch(
        sys.executable, "-c", ASKS, gpu_memory=GIB, environment={"PYTHONPATH": str(BUILD.parent)}
    )
    await host.says(container, "holding")
    asyncio.get_running_loop().call_later(4.0, os.close, last)
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    await host.command("resume", container)
    await eventually(lambda: not host.up.broker.tenants[str(container.pk)].swap)
    await asyncio.sleep(1)
    assert max(float(line.split()[1]) for line in host.log(container).splitlines() if "longest" in line) < 2
