"""Holders give way to those who wait, on a real scheduler with real programs, and come back by themselves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.core import preemption
from scheduler.core.events import NotMoved, Preempt
from scheduler.core.state import Mode
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import BUILD, GIB, Host, SeparateScheduler, a_host, query
from tests.support.swapped import CHECKPOINT, FAILS, LOCK, at_once, fault, free_memory, slowly
from web.models import AllocationEvent, Container, Swap

IDLE = 0.02  # minutes

# It holds memory and sleeps until somebody wants something of it; then it computes a little and looks at every byte.
NOTEBOOK = """
import hashlib, signal, sys
from tests.support.cuda import *
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
cuda, size = Cuda(), int(sys.argv[1])
address = cuda.alloc(size)
told = hashlib.sha256(b"told").digest() * (MIB // 32)
cuda.write(address + size - MIB, told)
print("holding", flush=True)
for cell in range(1, 10):
    if signal.sigwait([signal.SIGUSR1, signal.SIGUSR2]) == signal.SIGUSR2:
        cuda.free(cuda.alloc(MIB))
    assert cuda.read(address + size - MIB, MIB) == told
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


async def test_one_that_is_forgotten_before_its_turn_is_no_error(lab: Host) -> None:
    lab.up.swapping.preempt(Preempt("ended", "waits", Mode.IDLE))
    (moving,) = lab.up.swapping._under_way
    await moving


async def test_an_idle_holder_gives_way_and_comes_back_when_it_computes_again(lab: Host) -> None:
    container = await notebook(lab)
    out, other = await gives_way(lab, container)
    assert (out.state, out.swap, out.paused_at) == ("swapped", Swap.OUT, None)
    assert (out.gave_way, out.gave_way_to) == ("idle", "training")
    (event,) = await eventually_events(lab, container, "swapped_out")
    assert event.detail.startswith('It was idle, and gave way to "training". It took ')
    run_cell(lab, container)
    waits = await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].suspended_since)
    assert waits is not None
    await lab.command("kill", other)
    await lab.says(container, "cell 1 is right")
    back = await lab.until(container, "running")
    assert (back.swap, back.gave_way, back.gave_way_to) == ("", "", "")
    (event,) = await eventually_events(lab, container, "swapped_in")
    assert event.detail.startswith("It computes again. It took ")


async def test_a_call_of_ours_brings_it_back_at_once(lab: Host) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    await lab.command("kill", other)
    run_cell(lab, container, signal.SIGUSR2)
    await lab.says(container, "cell 1 is right")


@pytest.mark.parametrize("fields", [{"give_way": False}, {"guaranteed": True}])
async def test_who_has_opted_out_and_who_is_guaranteed_stay(lab: Host, fields: dict[str, bool]) -> None:
    container = await notebook(lab, **fields)
    other, _ = await lab.start_launch(*WORDS, gpu_memory=3 * GIB + GIB // 2)
    await lab.until(other, "suspended")
    for _ in range(3):
        now = lab.up.broker.now()
        await eventually(lambda then=now: lab.up.broker.state.now > then + 1)
    assert (await lab.get(container)).state == "running"
    assert not await lab.events(container, "swapped_out", "not_moved")


async def test_one_that_cannot_be_moved_goes_on_and_says_why(lab: Host) -> None:
    container = await notebook(lab)
    fault(LOCK, FAILS)
    other, _ = await lab.start_launch(*WORDS, gpu_memory=4 * GIB, name="training")
    await eventually(lambda: lab.up.broker.state.containers[str(container.pk)].stays_until > 0)
    (event,) = await eventually_events(lab, container, "not_moved")
    assert event.detail.startswith('It was to give way to "training". Its GPU memory could not be freed: ')
    run_cell(lab, container)
    await lab.says(container, "cell 1 is right")
    assert (await lab.get(container)).swap == ""
    assert (await lab.get(other)).state == "suspended"
    lab.up.broker.tell(NotMoved(lab.up.broker.now(), str(container.pk), 0))  # its ten minutes are over
    await lab.until(other, "exited")


async def eventually_events(host: Host, container: Container, *kinds: str) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        while not (found := await host.events(container, *kinds)):  # noqa: ASYNC110 - a row of the database
            await asyncio.sleep(0.02)
    return found


async def test_without_host_memory_to_spare_it_stays(lab: Host) -> None:
    container = await notebook(lab)
    lab.up.swapping.budget = GIB  # the core has not been told
    await lab.start_launch(*WORDS, gpu_memory=4 * GIB)
    (event,) = await eventually_events(lab, container, "not_moved")
    assert "of the 1 GiB that may be used for this" in event.detail
    assert (await lab.get(container)).state == "running"


async def test_killed_while_it_has_given_way(lab: Host) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    await lab.command("kill", container)
    await lab.until(container, "killed")
    await lab.command("kill", other)
    await lab.until(other, "killed")
    assert (await lab.returned(container)).granted == 0
    assert await free_memory(lab) == 0


async def test_a_person_pauses_and_resumes_one_that_has_given_way(lab: Host) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    answer = await lab.command("pause", container)
    assert answer.outcome == "done", answer.message
    paused = await lab.get(container)
    assert (paused.state, paused.gave_way) == ("swapped", "")
    await lab.command("kill", other)
    await lab.command("resume", container)
    await lab.until(container, "running")
    run_cell(lab, container)
    await lab.says(container, "cell 1 is right")


async def test_a_person_brings_back_one_that_has_given_way(lab: Host) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    answer = await lab.command("resume", container)
    assert answer.outcome == "done", answer.message
    await lab.command("kill", other)
    await lab.until(container, "running")


async def test_a_new_scheduler_leaves_it_out_until_it_stirs(lab: Host) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    await eventually((lab.home / "habits" / f"{container.pk}.json").exists)
    await lab.stop()
    await lab.start()
    live = lab.up.broker.live_containers[str(container.pk)]
    await lab.command("kill", other)
    await lab.returned(other)
    assert (live.swap, live.suspended_since) == (Swap.OUT, None)
    await eventually(lambda: lab.up.activity._habits)  # it is looked at
    run_cell(lab, container)
    await lab.says(container, "cell 1 is right")


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


async def test_one_of_whose_habits_nothing_is_known_is_brought_back(lab: Host) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    habits = lab.home / "habits" / f"{container.pk}.json"
    await eventually(habits.exists)
    await lab.stop()
    habits.write_text("{")
    await lab.start()
    await lab.command("kill", other)
    await lab.until(container, "running")


# The other two are in test_swapping.py, where a person has it moved: the next scheduler finds it the same.
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
        async with asyncio.timeout(PATIENCE):
            while (await lab.get(container)).swap != moment:  # noqa: ASYNC110 - a row of the database
                await asyncio.sleep(0.005)
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


async def test_two_that_compute_take_turns_where_they_do_not_fit_together(
    transactional_db: None, settings: Any, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.GPUSHARE_IDLE_MINUTES = 0
    settings.GPUSHARE_GIVE_WAY = "rotate"
    settings.GPUSHARE_ROTATE_AFTER = 0.01
    monkeypatch.setattr(preemption, "WORTH", 0)
    async with a_host(settings, tmp_path_factory.mktemp("host")) as host:
        at_once()
        words = ("workload", "--bytes", "3GiB", "--check", "1MiB", "--until", str(host.home / "go"))
        both = [await host.start_launch(*words, gpu_memory=3 * GIB + GIB // 2) for _ in range(2)]
        async with asyncio.timeout(PATIENCE):
            while await query(AllocationEvent.objects.filter(kind="swapped_out").count) < 2:  # noqa: ASYNC110 - rows
                await asyncio.sleep(0.05)
        (host.home / "go").touch()
        for container, _ in both:
            await host.until(container, "exited", 60)
        events = [event for container, _ in both for event in await host.events(container, "swapped_out")]
        assert len(events) >= 2
        assert all(event.detail.startswith("It had its time, and gave way to ") for event in events)


async def test_a_failed_checkpoint_ends_it_with_its_reason(lab: Host) -> None:
    container = await notebook(lab)
    fault(CHECKPOINT, FAILS)
    other, _ = await lab.start_launch(*WORDS, gpu_memory=4 * GIB)
    ended = await lab.until(container, "killed")
    assert "Its GPU memory was lost" in ended.reason
    await lab.until(other, "exited")


async def test_a_resume_that_was_told_is_kept_by_the_next_scheduler(lab: Host) -> None:
    """While another is moved nothing of it had been written, and it stayed out until it computed by itself."""
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    await eventually((lab.home / "habits" / f"{container.pk}.json").exists)
    await lab.command("kill", other)
    await lab.up.swapping._transfer.acquire()
    assert (await lab.command("resume", container)).outcome == "done"
    await lab.stop()
    await lab.start()
    await lab.until(container, "running")
