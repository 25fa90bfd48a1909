"""Giving way, and something else between any two of its steps: a pause, a resume, a kill, a freeze, another process."""

import asyncio
from typing import Any

import pytest

from scheduler.card.helper import CardError, Why
from scheduler.containers import host_memory_budget, swapping
from scheduler.core.state import Stage
from scheduler.sessions.live_containers import Session
from tests.scheduler.test_preemption import WORDS, eventually_events, lab
from tests.scheduler.test_swapping_two_at_once import asked
from tests.support.host import GIB
from tests.support.inprocess import programs
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.memory import gives_way, notebook, on_card, runs_cell
from tests.support.inprocess.process import Process
from web.models import Container

__all__ = ["lab"]


class Step:
    """A step of the mover that waits in front of what it does, until it may go on. Not ours to move: it fails then."""

    def __init__(self, host: InProcess, name: str, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.reached, self.go_on, self._fails = asyncio.Event(), asyncio.Event(), fails
        self._real = getattr(host.up.swapping._mover, name)
        monkeypatch.setattr(host.up.swapping._mover, name, self._do)

    async def _do(self, moved: Session | list[Session], *more: float) -> Any:
        self.reached.set()
        await self.go_on.wait()
        if self._fails:
            raise CardError(Why.BUSY, 0, "It does not come to rest.")
        return await self._real(moved, *more)


async def is_asked_to_go(host: InProcess, container: Container) -> Container:
    """By one that waits for what it has, and gets it. That one."""
    await host.eventually(lambda: host.up.activity._habits)
    other, _ = await host.start_launch(*WORDS, "--hold", "600", gpu_memory=4 * GIB, name="training")
    await host.eventually(lambda: host.up.broker.state.containers[str(container.pk)].stage is Stage.LEAVING)
    return other


async def test_a_pause_meanwhile_is_a_pause_if_it_cannot_be_moved(
    lab: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(lab)
    step = Step(lab, "stop", monkeypatch, fails=True)
    await is_asked_to_go(lab, container)
    await step.reached.wait()
    command = await asked(lab, "pause", container)
    step.go_on.set()
    answer = await lab.answer(command)
    assert (answer.outcome, answer.message) == ("done", "It is paused.")
    paused = await lab.get(container)
    assert (paused.state, paused.swap) == ("paused", "")


async def test_a_resume_meanwhile_brings_it_back(lab: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await notebook(lab)
    step = Step(lab, "out", monkeypatch)
    other = await is_asked_to_go(lab, container)
    await step.reached.wait()
    command = await asked(lab, "resume", container)
    step.go_on.set()
    assert (await lab.answer(command)).outcome == "done"
    await lab.command("kill", other)
    await lab.until(container, "running")
    assert (await lab.get(container)).swap == ""


async def test_one_that_is_ended_meanwhile_can_still_save_what_is_on_its_card(
    lab: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def saves(process: Process) -> int:
        process.deaf = True
        await process.alloc(3 * GIB)
        process.say("holding")
        await process.terminated.wait()
        await process.compute(0.001)
        process.say("saved")
        return 0

    container = await lab.launch(saves, gpu_memory=4 * GIB)
    await lab.says(container, "holding")
    step = Step(lab, "out", monkeypatch)
    await is_asked_to_go(lab, container)
    await step.reached.wait()
    command = await asked(lab, "kill", container, grace=30)
    await lab.eventually(lambda: lab.up.broker.live_containers[str(container.pk)].killed)
    step.go_on.set()
    assert (await lab.answer(command)).outcome == "done"
    assert "saved" in lab.log(container)


async def test_one_that_is_just_being_frozen_is_not_moved(lab: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen process does not answer the driver."""
    container = await notebook(lab)
    freezes, freeze = asyncio.Event(), lab.engine.pause

    async def slowly(engine_id: str) -> None:
        await freezes.wait()
        await freeze(engine_id)

    monkeypatch.setattr(lab.engine, "pause", slowly)
    async with lab.up.swapping._transfer:
        await is_asked_to_go(lab, container)
        command = await asked(lab, "pause", container)
        await lab.eventually(lambda: lab.up.broker.state.containers[str(container.pk)].paused)
    (event,) = await eventually_events(lab, container, "not_moved")
    assert "It was paused meanwhile." in event.detail
    freezes.set()
    assert (await lab.answer(command)).outcome == "done"
    assert (await lab.get(container)).state == "paused"


async def test_one_that_is_frozen_from_outside_meanwhile_keeps_nobody_waiting(
    lab: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(lab)
    live = lab.up.broker.live_containers[str(container.pk)]
    step = Step(lab, "stop", monkeypatch)
    await is_asked_to_go(lab, container)
    await step.reached.wait()
    await lab.engine.pause(live.engine_id)
    await lab.eventually(lambda: live.paused)
    step.go_on.set()
    await eventually_events(lab, container, "not_moved")
    tries = Step(lab, "await_answers", monkeypatch)
    await asyncio.sleep(3 * swapping.AGAIN)
    assert not tries.reached.is_set()
    tries.go_on.set()
    await lab.engine.resume(live.engine_id)
    await lab.eventually(lambda: live.swap == "")
    await runs_cell(lab, container)


async def test_a_host_that_is_short_of_descriptors_keeps_nobody_from_giving_way_later(
    lab: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(lab)

    def exhausted() -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as until:
        until.setattr(host_memory_budget, "available", exhausted)
        await lab.start_launch(*WORDS, gpu_memory=4 * GIB)
        (event,) = await eventually_events(lab, container, "not_moved")
    assert "Too many open files" in event.detail
    assert lab.up.broker.state.containers[str(container.pk)].stage is Stage.HERE
    assert (await lab.get(container)).state == "running"


async def server(process: Process) -> None:
    """A notebook's: it holds nothing, and starts its kernel, and another one when it is asked to."""
    while True:
        process.fork(programs.notebook, str(3 * GIB))
        await process.asked.get()


async def test_a_kernel_that_is_started_anew_while_it_is_out_has_its_memory_on_the_card(lab: InProcess) -> None:
    container = await lab.launch(server, gpu_memory=4 * GIB)
    await lab.says(container, "holding")
    _, other = await gives_way(lab, container)
    await lab.command("kill", other)
    await lab.returned(other)
    first, kernel = lab.processes(container)
    lab.engine.kill_process(kernel.pid)
    first.asked.put_nowait("anew")
    await lab.eventually(lambda: lab.log(container).count("holding") == 2)
    back = await lab.until(container, "running")
    assert (back.swap, back.swapped, back.gave_way) == ("", 0, "")
    assert await on_card(lab) > 3 * GIB
