"""Holders give way to those who wait, and come back by themselves.

With real programs and a real driver's threads: test_preemption_processes.py.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scheduler.core.effects import Preempt
from scheduler.core.events import NotMoved
from scheduler.core.moves import preemption
from scheduler.core.state import Mode
from tests.scheduler.test_planned import ended, plan
from tests.support.host import GIB, query
from tests.support.inprocess.driver import FAILS
from tests.support.inprocess.host import InProcess, a_host_inside
from tests.support.inprocess.memory import gives_way, notebook, runs_cell
from web.models import AllocationEvent, Container, Swap

WORDS = ("workload", "--bytes", "3GiB")


@pytest.fixture
async def lab(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    """A host with one card of 5 GiB, on which everybody is idle a second after the start."""
    settings.GPUSHARE_IDLE_MINUTES = 0.02
    async with a_host_inside(settings) as host:
        yield host


async def test_one_that_is_forgotten_before_its_turn_is_no_error(lab: InProcess) -> None:
    lab.up.swapping.preempt(Preempt("ended", "waits", Mode.IDLE))
    (moving,) = lab.up.swapping._under_way
    await moving


async def test_an_idle_holder_gives_way_and_comes_back_when_it_computes_again(lab: InProcess) -> None:
    container = await notebook(lab)
    out, other = await gives_way(lab, container)
    assert (out.state, out.swap, out.paused_at) == ("swapped", Swap.OUT, None)
    assert (out.gave_way, out.gave_way_to) == ("idle", "training")
    (event,) = await eventually_events(lab, container, "swapped_out")
    assert event.detail.startswith('It was idle, and gave way to "training". It took ')
    lab.process(container).asked.put_nowait("compute")
    live = lab.up.broker.live_containers[str(container.pk)]
    await lab.eventually(lambda: live.suspended_since is not None)
    await lab.command("kill", other)
    await lab.says(container, "cell 1 is right")
    back = await lab.until(container, "running")
    assert (back.swap, back.gave_way, back.gave_way_to) == ("", "", "")
    (event,) = await eventually_events(lab, container, "swapped_in")
    assert event.detail.startswith("It computes again. It took ")


async def test_an_idle_holder_gives_way_to_a_planned_launch_which_is_named(lab: InProcess) -> None:
    container = await notebook(lab)
    planned = await plan(lab, name="nightly", gpu_memory=4 * GIB)
    assert (await lab.until(container, "swapped")).gave_way_to == "nightly"
    assert (await ended(lab, planned)).ended == "ok"


async def test_a_call_of_ours_brings_it_back_at_once(lab: InProcess) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    await lab.command("kill", other)
    await runs_cell(lab, container, what="call")


@pytest.mark.parametrize("fields", [{"give_way": False}, {"guaranteed": True}])
async def test_who_has_opted_out_and_who_is_guaranteed_stay(lab: InProcess, fields: dict[str, bool]) -> None:
    container = await notebook(lab, **fields)
    other, _ = await lab.start_launch(*WORDS, gpu_memory=3 * GIB + GIB // 2)
    await lab.until(other, "suspended")
    await asyncio.sleep(3)
    assert (await lab.get(container)).state == "running"
    assert not await lab.events(container, "swapped_out", "not_moved")


async def test_one_that_cannot_be_moved_goes_on_and_says_why(lab: InProcess) -> None:
    container = await notebook(lab)
    lab.driver.faults["lock"] = FAILS
    other, _ = await lab.start_launch(*WORDS, gpu_memory=4 * GIB, name="training")
    await lab.eventually(lambda: lab.up.broker.state.containers[str(container.pk)].stays_until > 0)
    (event,) = await eventually_events(lab, container, "not_moved")
    assert event.detail.startswith('It was to give way to "training". Its GPU memory could not be freed: ')
    await runs_cell(lab, container)
    assert (await lab.get(container)).swap == ""
    assert (await lab.get(other)).state == "suspended"
    lab.up.broker.tell(NotMoved(lab.up.broker.now(), str(container.pk), 0))  # its ten minutes are over
    await lab.until(other, "exited")


async def eventually_events(host: InProcess, container: Container, *kinds: str) -> list[Any]:
    return await host.eventually(lambda: host.events(container, *kinds))


async def test_without_host_memory_to_spare_it_stays(lab: InProcess) -> None:
    container = await notebook(lab)
    lab.up.swapping.budget = GIB  # the core has not been informed
    await lab.start_launch(*WORDS, gpu_memory=4 * GIB)
    (event,) = await eventually_events(lab, container, "not_moved")
    assert "of the 1 GiB that may be used for this" in event.detail
    assert (await lab.get(container)).state == "running"


async def test_a_person_pauses_and_resumes_one_that_has_given_way(lab: InProcess) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    answer = await lab.command("pause", container)
    assert answer.outcome == "done", answer.message
    paused = await lab.get(container)
    assert (paused.state, paused.gave_way) == ("swapped", "")
    await lab.command("kill", other)
    await lab.command("resume", container)
    await lab.until(container, "running")
    await runs_cell(lab, container)


async def test_a_person_brings_back_one_that_has_given_way(lab: InProcess) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    answer = await lab.command("resume", container)
    assert answer.outcome == "done", answer.message
    await lab.command("kill", other)
    await lab.until(container, "running")


async def test_a_new_scheduler_leaves_it_out_until_it_stirs(lab: InProcess) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    await lab.eventually((lab.home / "habits" / f"{container.pk}.json").exists)
    await lab.stop()
    await lab.start()
    live = lab.up.broker.live_containers[str(container.pk)]
    await lab.command("kill", other)
    await lab.returned(other)
    assert (live.swap, live.suspended_since) == (Swap.OUT, None)
    await lab.eventually(lambda: lab.up.activity._habits)  # it is looked at
    await runs_cell(lab, container)


async def test_one_of_whose_habits_nothing_is_known_is_brought_back(lab: InProcess) -> None:
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    habits = lab.home / "habits" / f"{container.pk}.json"
    await lab.eventually(habits.exists)
    await lab.stop()
    habits.write_text("{")
    await lab.start()
    await lab.command("kill", other)
    await lab.until(container, "running")


async def test_two_that_compute_take_turns_where_they_do_not_fit_together(
    virtual_time: None, database: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.GPUSHARE_IDLE_MINUTES = 0
    settings.GPUSHARE_GIVE_WAY = "rotate"
    settings.GPUSHARE_ROTATE_AFTER = 0.01
    monkeypatch.setattr(preemption, "WORTH", 0)
    async with a_host_inside(settings) as host:
        words = ("workload", "--bytes", "3GiB", "--until", str(host.home / "go"))
        both = [await host.start_launch(*words, gpu_memory=3 * GIB + GIB // 2) for _ in range(2)]
        swapped = AllocationEvent.objects.filter(kind="swapped_out")

        async def twice() -> bool:
            return await query(swapped.count) >= 2

        await host.eventually(twice)
        (host.home / "go").touch()
        for container, _ in both:
            await host.until(container, "exited")
        details = await query(lambda: [event.detail for event in swapped])
        assert all(detail.startswith("It had used its time, and gave way to ") for detail in details)


async def test_a_failed_checkpoint_ends_it_with_its_reason(lab: InProcess) -> None:
    container = await notebook(lab)
    lab.driver.faults["checkpoint"] = FAILS
    other, _ = await lab.start_launch(*WORDS, gpu_memory=4 * GIB)
    ended = await lab.until(container, "killed")
    assert "Its GPU memory was lost" in ended.reason
    await lab.until(other, "exited")


async def test_a_resume_that_was_recorded_is_kept_by_the_next_scheduler(lab: InProcess) -> None:
    """While another is moved nothing of it had been written, and it stayed out until it computed by itself."""
    container = await notebook(lab)
    _, other = await gives_way(lab, container)
    await lab.eventually((lab.home / "habits" / f"{container.pk}.json").exists)
    await lab.command("kill", other)
    await lab.up.swapping._transfer.acquire()
    assert (await lab.command("resume", container)).outcome == "done"
    await lab.stop()
    await lab.start()
    await lab.until(container, "running")
