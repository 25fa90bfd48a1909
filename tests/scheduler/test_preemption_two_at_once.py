"""Giving way, and something else between any two of its steps: a pause, a resume, a kill, a freeze, another process."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from scheduler.card.helper import CardError, Why
from scheduler.containers import host_memory_budget, moving, swapping
from scheduler.core.state import Stage
from scheduler.sessions.live_containers import Session
from tests.scheduler.test_preemption import (
    NOTEBOOK,
    WORDS,
    eventually_events,
    gives_way,
    lab,
    notebook,
    run_cell,
)
from tests.scheduler.test_swapping_two_at_once import asked
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host
from tests.support.swapped import at_once, free_memory
from web.models import Container

__all__ = ["lab"]


class Step:
    """A step of the mover that waits in front of what it does, until it may go on. Not ours to move: it fails then."""

    def __init__(self, host: Host, name: str, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.reached, self.go_on, self._fails = asyncio.Event(), asyncio.Event(), fails
        self._real = getattr(host.up.swapping._mover, name)
        monkeypatch.setattr(host.up.swapping._mover, name, self._do)

    async def _do(self, moved: Session | list[Session], *more: float) -> Any:
        self.reached.set()
        await self.go_on.wait()
        if self._fails:
            raise CardError(Why.BUSY, 0, "It does not come to rest.")
        return await self._real(moved, *more)


async def is_asked_to_go(host: Host, container: Container) -> Container:
    """By one that waits for what it has, and gets it. That one."""
    await eventually(lambda: host.up.activity._habits)
    other, _ = await host.start_launch(*WORDS, "--hold", "600", gpu_memory=4 * GIB, name="training")
    await eventually(lambda: host.up.broker.state.containers[str(container.pk)].stage is Stage.LEAVING)
    return other


async def test_a_pause_meanwhile_is_a_pause_if_it_cannot_be_moved(lab: Host, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_resume_meanwhile_brings_it_back(lab: Host, monkeypatch: pytest.MonkeyPatch) -> None:
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
    lab: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once()
    code = NOTEBOOK.replace("signal.SIGUSR1, ", "signal.SIGTERM, ") + "    break\n"
    words = (sys.executable, "-c", code, str(3 * GIB))
    container = await lab.launch(*words, gpu_memory=4 * GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await lab.says(container, "holding")
    step = Step(lab, "out", monkeypatch)
    await is_asked_to_go(lab, container)
    await step.reached.wait()
    command = await asked(lab, "kill", container, grace=30)
    await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].killed)
    step.go_on.set()
    assert (await lab.answer(command)).outcome == "done"
    assert "cell 1 is right" in lab.log(container)


async def test_one_that_is_just_being_frozen_is_not_moved(lab: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen process does not answer the driver."""
    container = await notebook(lab)
    freezes, freeze = asyncio.Event(), lab.up.engine.pause

    async def slowly(engine_id: str) -> None:
        await freezes.wait()
        await freeze(engine_id)

    monkeypatch.setattr(lab.up.engine, "pause", slowly)
    async with lab.up.swapping._transfer:
        await is_asked_to_go(lab, container)
        command = await asked(lab, "pause", container)
        await eventually(lambda: lab.up.broker.state.containers[str(container.pk)].paused)
    (event,) = await eventually_events(lab, container, "not_moved")
    assert "It was paused meanwhile." in event.detail
    freezes.set()
    assert (await lab.answer(command)).outcome == "done"
    assert (await lab.get(container)).state == "paused"


async def test_one_that_is_frozen_from_outside_meanwhile_keeps_nobody_waiting(
    lab: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"LOCK_SECONDS": 0.2, "GRACE": 0.2}.items():
        monkeypatch.setattr(moving, name, seconds)
    monkeypatch.setattr(swapping, "AGAIN", 0.1)
    container = await notebook(lab)
    live = lab.up.broker.live_containers[str(container.pk)]
    step = Step(lab, "stop", monkeypatch)
    await is_asked_to_go(lab, container)
    await step.reached.wait()
    await lab.up.engine.pause(live.engine_id)
    await eventually(lambda: live.paused)
    step.go_on.set()
    await eventually_events(lab, container, "not_moved")
    tries = Step(lab, "await_answers", monkeypatch)
    for _ in range(3):
        now = lab.up.broker.now()
        await eventually(lambda then=now: lab.up.broker.state.now > then + swapping.AGAIN)
    assert not tries.reached.is_set()
    tries.go_on.set()
    await lab.up.engine.resume(live.engine_id)
    await eventually(lambda: live.swap == "")
    run_cell(lab, container)
    await lab.says(container, "cell 1 is right")


async def test_a_host_that_is_short_of_descriptors_keeps_nobody_from_giving_way_later(
    lab: Host, monkeypatch: pytest.MonkeyPatch
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


# A notebook's server: it holds nothing, and starts its kernel anew when it is told to.
SERVER = """
import os, subprocess, sys, time
start = lambda: subprocess.Popen([sys.executable, "-c", KERNEL, sys.argv[1]])
kernel = start()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
kernel.kill()
kernel.wait()
start().wait()
"""


async def test_a_kernel_that_is_started_anew_while_it_is_out_has_its_memory_on_the_card(lab: Host) -> None:
    at_once()
    code = f"KERNEL = {NOTEBOOK!r}\n{SERVER}"
    words = (sys.executable, "-c", code, str(3 * GIB), str(lab.home / "anew"))
    container = await lab.launch(*words, gpu_memory=4 * GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await lab.says(container, "holding")
    _, other = await gives_way(lab, container)
    await lab.command("kill", other)
    await lab.returned(other)
    (lab.home / "anew").touch()
    await eventually(lambda: lab.log(container).count("holding") == 2)
    back = await lab.until(container, "running")
    assert (back.swap, back.swapped, back.gave_way) == ("", 0, "")
    assert await free_memory(lab) > 3 * GIB
