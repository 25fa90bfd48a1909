"""A pause that frees the card, with real programs on the simulated card: all else is in test_swapping.py."""

import asyncio
import sys

import pytest

from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host, SeparateScheduler, host
from tests.support.swapped import (
    ASKER_DIES,
    PROCESS_DIES,
    RESTORE,
    STEPS,
    at_once,
    ends_well,
    fault,
    free_memory,
    holder,
    slowly,
)
from web.models import Swap

__all__ = ["host"]


async def test_who_asks_its_card_in_a_loop_is_none_the_worse(host: Host) -> None:
    """A driver that is asked while the memory is away ends the process; see shim/hooks/hooks_asking.c."""
    at_once()
    code = (
        "import time; from tests.support.cuda import *; cuda = Cuda(); address = c_uint64();"
        "cuda('cuMemAlloc_v2', byref(address), c_size_t(8 * MIB)); print('has it', flush=True);"
        "import os, sys; asked = 0\n"
        "while asked < 4000 or not os.path.exists(sys.argv[1]):\n"
        "    cuda('cuCtxSynchronize'); asked += 1; time.sleep(0.0005)\n"
        "print('went on', flush=True)"
    )
    go_on = host.home / "go-on"
    words = (sys.executable, "-c", code, str(go_on))
    container = await host.launch(*words, environment={"PYTHONPATH": str(BUILD.parent)})
    await host.says(container, "has it")
    for _ in range(3):
        assert (await host.command("pause", container, free_memory=True)).outcome == "done"
        assert (await host.command("resume", container)).outcome == "done"
        await eventually(lambda: host.up.broker.live_containers[str(container.pk)].swap == "")
    go_on.touch()
    await host.until(container, "exited")
    assert "went on" in host.log(container)


async def test_managed_memory_is_refused_and_goes_on(host: Host) -> None:
    at_once()
    code = (
        "import sys, time; from tests.support.cuda import *; cuda = Cuda(); address = c_uint64();"
        "cuda('cuMemAllocManaged', byref(address), c_size_t(8 * MIB), 1); print('has it', flush=True);"
        "import os\n"
        "while not os.path.exists(sys.argv[1]): cuda('cuCtxSynchronize'); time.sleep(0.05)\n"
        "print('went on', flush=True)"
    )
    root, go_on = str(BUILD.parent), host.home / "go-on"
    container = await host.launch(sys.executable, "-c", code, str(go_on), environment={"PYTHONPATH": root})
    await host.says(container, "has it")
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "cannot_swap", 409)
    assert "managed memory" in answer.message
    assert (await host.get(container)).state == "running"
    assert (await host.get(container)).swap == ""
    go_on.touch()
    await host.until(container, "exited")
    assert "went on" in host.log(container)


@STEPS
async def test_a_helper_that_dies_costs_nothing(host: Host, step: int) -> None:
    container = await holder(host)
    fault(step, ASKER_DIES)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    assert (await host.get(container)).swap == ""
    await ends_well(host, container)


async def test_a_program_that_dies_meanwhile_is_ended_and_all_comes_back(host: Host) -> None:
    container = await holder(host)
    await host.command("pause", container, free_memory=True)
    fault(RESTORE, PROCESS_DIES)
    await host.command("resume", container)
    await host.until(container, "failed")
    assert (await host.returned(container)).used == 0
    assert await free_memory(host) == 0


@pytest.mark.parametrize("moment", [Swap.LEAVING, Swap.OUT, Swap.COMING])
async def test_a_scheduler_killed_in_the_middle_leaves_nothing_half(host: Host, moment: Swap) -> None:
    """What was begun comes to its end under the next one."""
    separate = SeparateScheduler(host.home, GPUSHARE_POLICY="fifo")
    container = await holder(host, GIB)
    await host.stop()
    await separate.start()
    if moment is Swap.COMING:
        await host.command("pause", container, free_memory=True)
    if moment is not Swap.OUT:
        slowly()
    kind, asked = ("resume", {}) if moment is Swap.COMING else ("pause", {"free_memory": True})
    command = asyncio.create_task(host.command(kind, container, **asked))
    await host.moved_to(container, moment)
    await separate.kill()
    at_once()
    await host.start()
    answer = await command
    assert answer.outcome == "done", answer.message
    if moment is not Swap.COMING:
        assert (await host.get(container)).state == "swapped"
        await host.command("resume", container)
    await ends_well(host, container)
    assert (await host.returned(container)).used == 0
