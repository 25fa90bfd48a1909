"""A pause that frees the card, on a real scheduler with real programs: nothing is lost, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import sys

import pytest

from scheduler.card.helper import CardError, State, Why
from scheduler.core.state import Stage
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import BUILD, GIB, Host, SeparateScheduler
from tests.support.swapped import (
    ASKER_DIES,
    CHECKPOINT,
    FAILS,
    LOCK,
    PROCESS_DIES,
    RESTORE,
    STEPS,
    UNLOCK,
    at_once,
    ends_well,
    fault,
    free_memory,
    holder,
    is_back,
    slowly,
)
from web.models import Swap


async def test_a_pause_with_memory_frees_the_card_and_a_resume_loses_nothing(host: Host) -> None:
    container = await holder(host)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "done", answer.message
    assert "GiB of GPU memory came free in" in answer.message
    swapped = await host.get(container)
    assert (swapped.state, swapped.swap, swapped.paused_at is not None) == ("swapped", Swap.OUT, True)
    assert swapped.swapped > 2 * GIB
    assert await free_memory(host) == 0
    assert (await host.claim(container)).used == 0
    answer = await host.command("resume", container)
    assert answer.outcome == "done", answer.message
    await is_back(host, container)
    ended = await ends_well(host, container)
    assert (ended.swap, ended.swapped, ended.swapped_at) == ("", 0, None)
    events = await host.events(container, "swapped_out", "paused", "unpaused", "swapped_in")
    assert [event.kind for event in events] == ["swapped_out", "paused", "unpaused", "swapped_in"]
    assert events[0].bytes == events[3].bytes == swapped.swapped


async def test_what_came_free_is_anothers_and_it_comes_back_when_there_is_room(host: Host) -> None:
    container = await holder(host, 3 * GIB)
    await host.command("pause", container, free_memory=True)
    other = await host.launch("workload", "--bytes", "4GiB", "--check", "1MiB", "--hold", "600", gpu_memory=5 * GIB)
    await host.says(other, "holding")
    answer = await host.command("resume", container)
    assert "as soon as its memory is back" in answer.message
    waits = await eventually(lambda: host.up.broker.live_containers[str(container.pk)].suspended_since)
    assert waits is not None
    assert (await host.get(container)).state == "swapped"
    await host.command("kill", other)
    await ends_well(host, container)
    assert all(event.waited > 0 for event in await host.events(container, "resumed"))


async def test_paused_again_while_it_waits_it_stays_out(host: Host) -> None:
    container = await holder(host, 3 * GIB)
    await host.command("pause", container, free_memory=True)
    other = await host.launch("workload", "--bytes", "4GiB", "--check", "1MiB", "--hold", "600", gpu_memory=5 * GIB)
    await host.says(other, "holding")
    await host.command("resume", container)
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    await host.command("kill", other)
    await eventually(lambda: str(other.pk) not in host.up.broker.live_containers)
    assert (await host.get(container)).state == "swapped"
    assert host.up.broker.state.containers[str(container.pk)].stage is Stage.OUT
    await host.command("resume", container)
    await ends_well(host, container)


async def test_one_that_is_paused_already_can_still_free_its_memory(host: Host) -> None:
    container = await holder(host)
    await host.command("pause", container)
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    assert (await host.get(container)).state == "swapped"
    assert await free_memory(host) == 0
    await host.command("resume", container)
    await ends_well(host, container)


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
async def test_a_step_that_fails_changes_nothing(host: Host, step: int) -> None:
    container = await holder(host)
    fault(step, FAILS)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    if step == LOCK:  # after a failed checkpoint the driver promises nothing
        assert (await host.get(container)).state == "running"
        await ends_well(host, container)


@STEPS
async def test_a_helper_that_dies_costs_nothing(host: Host, step: int) -> None:
    container = await holder(host)
    fault(step, ASKER_DIES)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    assert (await host.get(container)).swap == ""
    await ends_well(host, container)


@pytest.mark.parametrize("step", [LOCK, CHECKPOINT, RESTORE, UNLOCK])
async def test_a_program_that_dies_meanwhile_is_ended_and_all_comes_back(host: Host, step: int) -> None:
    container = await holder(host)
    if step > CHECKPOINT:
        await host.command("pause", container, free_memory=True)
        fault(step, PROCESS_DIES)
        await host.command("resume", container)
    else:
        fault(step, PROCESS_DIES)
        await host.command("pause", container, free_memory=True)
    await host.until(container, "failed")
    assert (await host.returned(container)).used == 0
    assert await free_memory(host) == 0


async def test_killed_while_out(host: Host) -> None:
    container = await holder(host)
    await host.command("pause", container, free_memory=True)
    await host.command("kill", container)
    await host.until(container, "killed")
    assert (await host.returned(container)).granted == 0
    assert await free_memory(host) == 0


async def test_without_host_memory_to_spare_it_is_refused_with_the_figures(host: Host) -> None:
    container = await holder(host)
    host.up.swapping.budget = GIB
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "no_host_memory")
    assert "of the 1 GiB that may be used for this" in answer.message


async def test_what_all_containers_together_may_not_take_more_of_is_no_place_for_an_image(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await holder(host)
    monkeypatch.setattr(host.up.swapping._engine, "memory_left", lambda: GIB)
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "no_host_memory")
    assert "all containers together may take 1 GiB more of host memory (GPUSHARE_HOST_MEMORY)" in answer.message


async def test_one_without_gpu_memory_is_just_paused(host: Host) -> None:
    container = await host.launch("sleep", "600")
    answer = await host.command("pause", container, free_memory=True)
    assert answer.message == "It is paused. It held no GPU memory."
    assert (await host.get(container)).state == "paused"


async def test_a_new_scheduler_knows_what_is_out_and_brings_it_back(host: Host) -> None:
    container = await holder(host)
    await host.command("pause", container, free_memory=True)
    await host.stop()
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    assert (live.swap, sum(live.used(gpu) for gpu in live.quota)) == (Swap.OUT, 0)
    other = await host.launch("workload", "--bytes", "4GiB", "--check", "1MiB", gpu_memory=5 * GIB)
    await host.until(other, "exited")
    await host.command("resume", container)
    await ends_well(host, container)


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
    async with asyncio.timeout(PATIENCE):
        while (await host.get(container)).swap != moment:  # noqa: ASYNC110 - a row of the database
            await asyncio.sleep(0.005)
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


async def test_where_the_driver_cannot_do_it_the_answer_says_so_and_a_plain_pause_works(host: Host) -> None:
    container = await holder(host)
    host.up.swapping.why_not = "CUDA's checkpoint calls cannot be used here: the driver is for CUDA 12.4."
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "cannot_swap", 409)
    assert "the driver is for CUDA 12.4" in answer.message
    assert (await host.get(container)).state == "running"
    assert (await host.command("pause", container)).outcome == "done"
    await host.command("resume", container)
    await ends_well(host, container)


async def test_one_that_is_being_ended_is_not_moved_any_more(host: Host) -> None:
    container = await holder(host)
    live = host.up.broker.live_containers[str(container.pk)]
    command = asyncio.create_task(host.command("kill", container, grace=1))
    await eventually(lambda: live.killed)
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "container_ended")
    assert (await command).outcome == "done"
    assert await free_memory(host) == 0


async def test_a_suspended_one_can_be_moved_and_waits_on_when_it_is_back(host: Host) -> None:
    container = await holder(host)
    waiting = await host.launch("workload", "--bytes", "3GiB", "--check", "1MiB", gpu_memory=4 * GIB)
    await host.until(waiting, "suspended")
    assert (await host.command("pause", waiting, free_memory=True)).outcome == "done"
    assert (await host.get(waiting)).state == "swapped"
    await ends_well(host, container)
    await host.command("resume", waiting)
    await host.until(waiting, "exited", 60)


async def test_an_image_that_is_still_there_counts_in_the_host_memory_that_may_be_used(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its way back it is lent the card already, but the card had no room, and it is tried again later."""
    one, two = [await holder(host, GIB, quota=2 * GIB) for _ in range(2)]
    await host.command("pause", one, free_memory=True)
    host.up.swapping.budget = 2 * GIB  # each holds 1 GiB and a context
    refused = asyncio.Event()

    async def no_room(pid: int, within: float) -> None:
        refused.set()
        raise CardError(Why.NO_ROOM, pid, "There is no room.", State.CHECKPOINTED)

    with monkeypatch.context() as until:
        until.setattr(host.up.swapping._card, "restore", no_room)
        await host.command("resume", one)
        await refused.wait()
        answer = await host.command("pause", two, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "no_host_memory")
    await ends_well(host, one)
    await ends_well(host, two)
