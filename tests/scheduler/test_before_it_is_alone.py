"""While somebody of the scheduler before is still there, nobody is stopped for a turn: and nobody waits for that."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys

import pytest

from scheduler.card import generation
from scheduler.card.turns import EARLY
from tests.scheduler.test_turns_processes import computing, goes_on, take_turns
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import BUILD, GIB, Host, host
from tests.support.swapped import at_once

__all__ = ["host"]


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
    pausing = asyncio.create_task(host.command("pause", one, free_memory=free_memory))
    if free_memory:  # a move does wait
        live = host.up.broker.live_containers[str(one.pk)]
        await eventually(lambda: live.swap)
        os.close(last)
    answer = await pausing
    assert answer.outcome == "done", answer.message
    if not free_memory:
        os.close(last)
    await host.command("resume", one)
    await goes_on(host, one, two)
    await take_turns(host, one, two)
    assert not await host.events(one, "not_stopped")


ASKS = """
import time
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(MIB)
print("holding", flush=True)
while True:
    cuda("cuCtxSynchronize")
    print("asked", flush=True)
    time.sleep(0.01)
"""


async def test_whoever_asks_its_card_is_not_held_back_while_its_move_waits_for_the_last_scheduler(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "LONGEST", 10 * PATIENCE)
    at_once()
    await host.stop()
    last = os.open(host.home / "guardian.lock", os.O_RDONLY)
    fcntl.flock(last, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await host.start()
    container = await host.launch(
        sys.executable, "-c", ASKS, gpu_memory=GIB, environment={"PYTHONPATH": str(BUILD.parent)}
    )
    await host.says(container, "holding")
    pause = asyncio.create_task(host.command("pause", container, free_memory=True))
    live = host.up.broker.live_containers[str(container.pk)]
    await eventually(lambda: live.swap)
    asked = host.log(container).count("asked")
    await eventually(lambda: host.log(container).count("asked") > asked + 200)  # two seconds, if nothing holds it
    assert not pause.done()
    os.close(last)
    assert (await pause).outcome == "done"
    await host.command("resume", container)
    await eventually(lambda: not live.swap)
