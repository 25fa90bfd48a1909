"""A pause that frees the card: nothing is lost, whatever happens meanwhile.

With real programs, whose every byte is looked at, and killed schedulers and helpers: test_swapping_processes.py.
"""

import asyncio

import pytest

from scheduler.containers import host_memory_budget
from scheduler.core.state import Stage
from tests.support.host import GIB
from tests.support.inprocess.driver import FAILS, PROCESS_DIES
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.memory import STEPS, ends_well, is_back, notebook, on_card, runs_cell
from web.models import Swap


async def test_a_pause_with_memory_frees_the_card_and_a_resume_loses_nothing(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "done", answer.message
    assert "GiB of GPU memory was freed in" in answer.message
    swapped = await host.get(container)
    assert (swapped.state, swapped.swap, swapped.paused_at is not None) == ("swapped", Swap.OUT, True)
    assert swapped.swapped > 2 * GIB
    assert await on_card(host) == 0
    assert (await host.claim(container)).used == 0
    answer = await host.command("resume", container)
    assert answer.outcome == "done", answer.message
    await is_back(host, container)
    ended = await ends_well(host, container)
    assert (ended.swap, ended.swapped, ended.swapped_at) == ("", 0, None)
    events = await host.events(container, "swapped_out", "paused", "unpaused", "swapped_in")
    assert [event.kind for event in events] == ["swapped_out", "paused", "unpaused", "swapped_in"]
    assert events[0].bytes == events[3].bytes == swapped.swapped


async def test_what_came_free_is_anothers_and_it_comes_back_when_there_is_room(host: InProcess) -> None:
    container = await notebook(host, 3 * GIB)
    await host.command("pause", container, free_memory=True)
    other = await host.launch("workload", "--bytes", "4GiB", "--hold", "600", gpu_memory=5 * GIB)
    await host.says(other, "holding")
    answer = await host.command("resume", container)
    assert "when its memory is back" in answer.message
    live = host.up.broker.live_containers[str(container.pk)]
    await host.eventually(lambda: live.suspended_since is not None)
    assert (await host.get(container)).state == "swapped"
    await host.command("kill", other)
    await ends_well(host, container)
    assert all(event.waited > 0 for event in await host.events(container, "resumed"))


async def test_paused_again_while_it_waits_it_stays_out(host: InProcess) -> None:
    container = await notebook(host, 3 * GIB)
    await host.command("pause", container, free_memory=True)
    other = await host.launch("workload", "--bytes", "4GiB", "--hold", "600", gpu_memory=5 * GIB)
    await host.says(other, "holding")
    await host.command("resume", container)
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    await host.command("kill", other)
    await host.eventually(lambda: str(other.pk) not in host.up.broker.live_containers)
    assert (await host.get(container)).state == "swapped"
    assert host.up.broker.state.containers[str(container.pk)].stage is Stage.OUT
    await host.command("resume", container)
    await ends_well(host, container)


async def test_one_that_is_paused_already_can_still_free_its_memory(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
    await host.command("pause", container)
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    assert (await host.get(container)).state == "swapped"
    assert await on_card(host) == 0
    await host.command("resume", container)
    await ends_well(host, container)


@pytest.mark.parametrize("step", ["lock", "checkpoint"])
async def test_a_step_that_fails_changes_nothing(host: InProcess, step: str) -> None:
    container = await notebook(host, 2 * GIB)
    host.driver.faults[step] = FAILS
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    if step == "lock":  # after a failed checkpoint the driver promises nothing
        assert (await host.get(container)).state == "running"
        await ends_well(host, container)


@pytest.mark.parametrize("step", STEPS)
async def test_a_program_that_dies_meanwhile_is_ended_and_all_comes_back(host: InProcess, step: str) -> None:
    container = await notebook(host, 2 * GIB)
    if step in ("restore", "unlock"):
        await host.command("pause", container, free_memory=True)
        host.driver.faults[step] = PROCESS_DIES
        await host.command("resume", container)
    else:
        host.driver.faults[step] = PROCESS_DIES
        await host.command("pause", container, free_memory=True)
    await host.until(container, "failed")
    assert (await host.returned(container)).used == 0
    assert await on_card(host) == 0


async def test_what_the_driver_does_not_move_is_refused_and_goes_on(host: InProcess) -> None:
    """Managed memory, say: the real words of a driver are in test_swapping_processes.py."""
    container = await notebook(host)
    host.driver.refuses["checkpoint"] = 801
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "cannot_swap", 409)
    assert "managed memory" in answer.message
    await is_back(host, container)
    row = await host.get(container)
    assert (row.state, row.swap) == ("running", "")
    await runs_cell(host, container)


async def test_killed_while_out(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
    await host.command("pause", container, free_memory=True)
    await host.command("kill", container)
    ended = await host.until(container, "killed")
    assert (ended.swap, ended.swapped, ended.swapped_at) == ("", 0, None)
    assert (await host.returned(container)).granted == 0
    assert await on_card(host) == 0


async def test_without_host_memory_to_spare_it_is_refused_with_the_figures(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
    host.up.swapping.budget = GIB
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "no_host_memory")
    assert "of the 1 GiB that may be used for this" in answer.message


async def test_what_the_host_has_not_left_is_no_place_for_an_image(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(host, 2 * GIB)
    monkeypatch.setattr(host_memory_budget, "available", lambda: GIB)
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "no_host_memory")
    assert "the host has 1 GiB left" in answer.message


async def test_what_all_containers_together_may_not_take_more_of_is_no_place_for_an_image(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(host, 2 * GIB)
    monkeypatch.setattr(host.up.swapping._engine, "memory_left", lambda: GIB)
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "no_host_memory")
    assert "all containers together may take 1 GiB more of host memory (GPUSHARE_HOST_MEMORY)" in answer.message


async def test_one_without_gpu_memory_is_just_paused(host: InProcess) -> None:
    container = await host.launch("sleep", "600")
    answer = await host.command("pause", container, free_memory=True)
    assert answer.message == "It is paused. It held no GPU memory."
    assert (await host.get(container)).state == "paused"


async def test_a_new_scheduler_knows_what_is_out_and_brings_it_back(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
    await host.command("pause", container, free_memory=True)
    await host.stop()
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    assert (live.swap, sum(live.used(gpu) for gpu in live.quota)) == (Swap.OUT, 0)
    other = await host.launch("workload", "--bytes", "4GiB", gpu_memory=5 * GIB)
    await host.until(other, "exited")
    await host.command("resume", container)
    await ends_well(host, container)


async def test_where_the_driver_cannot_do_it_the_answer_says_so_and_a_plain_pause_works(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
    host.up.swapping.why_not = "CUDA's checkpoint calls cannot be used here: the driver is for CUDA 12.4."
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "cannot_swap", 409)
    assert "the driver is for CUDA 12.4" in answer.message
    assert (await host.get(container)).state == "running"
    assert (await host.command("pause", container)).outcome == "done"
    await host.command("resume", container)
    await ends_well(host, container)


async def test_one_that_is_being_ended_is_not_moved_any_more(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
    live = host.up.broker.live_containers[str(container.pk)]
    command = asyncio.create_task(host.command("kill", container, grace=1))
    await host.eventually(lambda: live.killed)
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "container_ended")
    assert (await command).outcome == "done"
    assert await on_card(host) == 0


async def test_a_suspended_one_can_be_moved_and_waits_on_when_it_is_back(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
    waiting = await host.launch("workload", "--bytes", "3GiB", gpu_memory=4 * GIB)
    await host.until(waiting, "suspended")
    assert (await host.command("pause", waiting, free_memory=True)).outcome == "done"
    assert (await host.get(waiting)).state == "swapped"
    await ends_well(host, container)
    await host.command("resume", waiting)
    await host.until(waiting, "exited")


async def test_an_image_that_is_still_there_counts_in_the_host_memory_that_may_be_used(host: InProcess) -> None:
    """On its way back it is lent the card already, but the card had no room, and it is tried again later."""
    one, two = [await notebook(host, GIB, quota=2 * GIB) for _ in range(2)]
    await host.command("pause", one, free_memory=True)
    host.up.swapping.budget = 2 * GIB  # each holds 1 GiB and a context
    host.driver.refuses["restore"] = 2  # CUDA's out of memory
    await host.command("resume", one)
    await host.eventually(lambda: ("restore", host.process(one).pid) in host.driver.asked)
    answer = await host.command("pause", two, free_memory=True)
    del host.driver.refuses["restore"]
    assert (answer.outcome, answer.code) == ("refused", "no_host_memory")
    await ends_well(host, one)
    await ends_well(host, two)
