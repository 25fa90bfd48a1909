"""Swapping, and something else at the same moment: a second pause, a new process, a freeze, an end."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import sys
from typing import Any

import pytest
from django.db import OperationalError

from scheduler.card.helper import CardError, Done, State, Why
from scheduler.containers import host_memory_budget, moving, swapping
from scheduler.engines.base import EngineError
from tests.support.eventually import PATIENCE, eventually, stopped
from tests.support.host import BUILD, GIB, Host, query
from tests.support.swapped import (
    CHECKPOINT,
    HANGS,
    HOLDER,
    at_once,
    ends_well,
    fault,
    free_memory,
    held_up,
    holder,
    is_back,
)
from web.models import Command, Container, Swap


async def asked(host: Host, kind: str, container: Container, **arguments: object) -> Command:
    """A command that the scheduler has begun."""
    command = await query(Command.objects.create, kind=kind, container=container, arguments=arguments)
    host.up.commands.wake()
    await eventually(lambda: command.pk in host.up.commands._taken)
    return command


async def test_two_pauses_at_once_do_not_take_the_same_host_memory(host: Host) -> None:
    one, two = [await holder(host, GIB, quota=2 * GIB) for _ in range(2)]
    host.up.swapping.budget = 2 * GIB  # each holds 1 GiB and a context
    async with host.up.swapping._transfer:  # both wait for their turn
        commands = [await asked(host, "pause", each, free_memory=True) for each in (one, two)]
    outcomes = [(await host.answer(command)).outcome for command in commands]
    assert sorted(outcomes) == ["done", "refused"]
    for container, outcome in zip((one, two), outcomes, strict=True):
        if outcome == "done":
            await host.command("resume", container)
        await ends_well(host, container)


async def test_nobody_takes_more_host_memory_than_they_leave_to_others(host: Host) -> None:
    """With their own pauses: of the budget, whoever is alone may have all."""
    first, second = [await holder(host, GIB, quota=int(1.2 * GIB)) for _ in range(2)]
    theirs = await holder(host, GIB, quota=int(1.2 * GIB), owner="bob")
    host.up.swapping.budget = 4 * GIB  # each holds 1 GiB and a context
    assert (await host.command("pause", first, free_memory=True)).outcome == "done"
    refused = await host.command("pause", second, free_memory=True)
    assert (refused.outcome, refused.code) == ("refused", "no_host_memory")
    assert "to all others, and its owner has 1." in refused.message
    assert (await host.command("pause", theirs, free_memory=True)).outcome == "done"
    await host.command("resume", theirs)
    await host.command("kill", theirs)
    await host.returned(theirs)
    assert (await host.command("pause", second, free_memory=True)).outcome == "done"
    for container in (first, second):
        await host.command("resume", container)
        await ends_well(host, container)


async def test_paused_while_it_waits_for_its_turn_to_come_back_it_stays_out(host: Host) -> None:
    container = await holder(host)
    await host.command("pause", container, free_memory=True)
    async with host.up.swapping._transfer:
        await host.command("resume", container)  # all of it is lent again
        assert host.up.broker.live_containers[str(container.pk)].granted(only_gpu(host)) > 0
        assert (await host.command("pause", container)).outcome == "done"
        assert host.up.broker.live_containers[str(container.pk)].granted(only_gpu(host)) == 0
    assert (await host.get(container)).state == "swapped"
    await host.command("resume", container)
    await is_back(host, container)
    await ends_well(host, container)
    assert len(await host.events(container, "swapped_in")) == 1


def only_gpu(host: Host) -> str:
    (gpu,) = host.up.gpus.cards
    return gpu


async def test_a_pause_while_it_is_on_its_way_back_is_refused(host: Host) -> None:
    container = await holder(host, GIB)
    await host.command("pause", container, free_memory=True)
    with held_up():
        await host.command("resume", container)
        await eventually(lambda: host.up.broker.live_containers[str(container.pk)].swap == Swap.COMING)
        answer = await host.command("pause", container)
    assert (answer.outcome, answer.code) == ("refused", "swapping")
    await ends_well(host, container)


async def test_a_freeze_that_fails_after_the_memory_is_out_brings_it_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await holder(host)

    async def fails(engine_id: str) -> None:
        raise EngineError("It cannot be frozen.")

    monkeypatch.setattr(host.up.engine, "pause", fails)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    ended = await ends_well(host, container)
    assert (ended.swap, ended.swapped) == ("", 0)


async def test_one_that_is_given_time_to_end_while_it_is_on_its_way_back_comes_back(host: Host) -> None:
    """It stayed "coming" for all of its grace: past the turns, and counted as in host memory."""
    at_once()
    words = f"trap '' TERM; exec {sys.executable} -c '{HOLDER}' {GIB} {host.home / 'go-on'}"
    container = await host.launch("sh", "-c", words, gpu_memory=4 * GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await host.says(container, "holding")
    await host.command("pause", container, free_memory=True)
    live = host.up.broker.live_containers[str(container.pk)]
    with held_up():
        await host.command("resume", container)
        await eventually(lambda: live.swap == Swap.COMING)
        killing = await asked(host, "kill", container, grace=600)
        await eventually(lambda: live.killed)
        assert live.swap == Swap.COMING
    await eventually(lambda: live.swap == "")
    (host.home / "go-on").touch()
    assert (await host.answer(killing)).outcome == "done"
    assert "every byte is right" in host.log(container)


async def test_a_lock_that_is_done_after_it_was_given_up_is_undone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was stopped from outside takes the lock once it goes on, and nobody waits for it any more."""
    monkeypatch.setattr(moving, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(moving, "GRACE", 0.2)
    monkeypatch.setattr(swapping, "AGAIN", 0.1)
    container = await holder(host)
    (session,) = host.up.broker.live_containers[str(container.pk)].sessions.values()
    await stopped(session.pid)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    os.kill(session.pid, signal.SIGCONT)
    await ends_well(host, container)


async def test_one_that_is_stopped_for_a_turn_and_does_not_answer_is_not_moved(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is let go as soon as it answers, and whoever runs again within a checkpoint does not survive it."""

    async def silent(container: str) -> bool:
        return False

    container = await holder(host)
    with monkeypatch.context() as patched:
        patched.setattr(host.up.turns, "settled", silent)
        answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    assert "still stopped for its turn" in answer.message
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    await host.command("resume", container)
    await ends_well(host, container)


async def test_a_program_that_stops_itself_holds_up_nobody_elses_transfer(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nothing, and each of its calls was waited for half a minute, one transfer after the other."""
    hostile, other = [await holder(host, GIB, quota=2 * GIB) for _ in range(2)]
    (session,) = host.up.broker.live_containers[str(hostile.pk)].sessions.values()
    await stopped(session.pid)
    command = await asked(host, "pause", hostile, free_memory=True)
    await eventually(host.up.swapping._transfer.locked)
    monkeypatch.setattr(moving, "GRACE", 10 * PATIENCE)  # whoever waited for one call of it would wait too long
    assert (await host.command("pause", other, free_memory=True)).outcome == "done"
    assert (await host.answer(command)).outcome == "refused"
    os.kill(session.pid, signal.SIGCONT)
    await host.command("resume", other)
    for container in (hostile, other):
        await ends_well(host, container)


async def test_of_several_processes_none_is_counted_out_that_is_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card had no room for the second: the first is back, and what it holds is nobody else's."""
    monkeypatch.setattr(swapping, "AGAIN", 0.1)
    code = HOLDER.replace("import hashlib", "import os; child = os.fork() == 0; import hashlib", 1)
    at_once()
    words = (sys.executable, "-c", code, str(GIB), str(host.home / "go-on"))
    container = await host.launch(*words, gpu_memory=4 * GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await eventually(lambda: host.log(container).count("holding") == 2)
    live, gpu = host.up.broker.live_containers[str(container.pk)], only_gpu(host)
    await host.command("pause", container, free_memory=True)
    restore, calls = host.up.swapping._card.restore, itertools.count(1)

    async def no_room_for_the_second(pid: int, within: float) -> Done:
        if next(calls) == 2:
            assert live.granted(gpu) > 2 * GIB
            refused.set()
            raise CardError(Why.NO_ROOM, pid, "There is no room.", State.CHECKPOINTED)
        return await restore(pid, within)

    refused = asyncio.Event()
    monkeypatch.setattr(host.up.swapping._card, "restore", no_room_for_the_second)
    await host.command("resume", container)
    await refused.wait()
    for _ in range(20):  # whatever it does next
        assert live.granted(gpu) > 2 * GIB
        await asyncio.sleep(0.01)
    await ends_well(host, container)


async def test_what_was_swapped_when_it_ended_is_swapped_no_more(host: Host) -> None:
    container = await holder(host)
    await host.command("pause", container, free_memory=True)
    await host.command("kill", container)
    ended = await host.until(container, "killed")
    assert (ended.swap, ended.swapped, ended.swapped_at) == ("", 0, None)


async def test_a_process_that_comes_while_the_memory_leaves_gets_none_before_it_is_back(host: Host) -> None:
    """Else its own, which stays on the card, would be counted as out, and lent to others."""
    code = HOLDER.replace(
        'print("holding", flush=True)',
        "import subprocess; print('holding', flush=True);"
        "other = subprocess.Popen([sys.executable, '-c', LATE, sys.argv[2] + '-late'])",
    ).replace("import hashlib", f"LATE = {LATE!r}\nimport hashlib", 1)
    words = (sys.executable, "-c", code, str(GIB), str(host.home / "go-on"))
    at_once()
    container = await host.launch(*words, gpu_memory=4 * GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await host.says(container, "ready")
    with held_up():
        command = await asked(host, "pause", container, free_memory=True)
        await eventually(lambda: host.up.broker.live_containers[str(container.pk)].swap == Swap.LEAVING)
        (host.home / "go-on-late").touch()
        await host.says(container, "asks for memory")
    assert (await host.answer(command)).outcome == "done"
    assert await free_memory(host) == 0
    await host.command("resume", container)
    await host.says(container, "late one has it")
    await ends_well(host, container)


async def test_where_the_driver_answers_nothing_for_long_it_is_ended_with_its_reason(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    container, other = [await holder(host, GIB, quota=2 * GIB) for _ in range(2)]
    fault(CHECKPOINT, HANGS)
    with monkeypatch.context() as hasty:  # of this one alone: a busy machine may need longer for the other
        hasty.setattr(moving, "GRACE", 3.0)
        hasty.setattr(moving, "_patience", lambda session: 0.2)
        hasty.setattr(swapping, "AGAIN", 0.1)
        hasty.setattr(swapping, "LONGEST", 0.2)
        hasty.setattr(swapping, "GIVE_UP", 1.0)
        answer = await host.command("pause", container, free_memory=True)
        assert (answer.outcome, answer.code) == ("refused", "cannot_swap")
        ended = await host.until(container, "killed")
    assert "Its GPU memory was lost on the way" in ended.reason
    assert "did not answer" in ended.reason
    assert (await host.returned(container)).granted == 0
    assert (await host.command("pause", other, free_memory=True)).outcome == "done"
    await host.command("resume", other)
    await ends_well(host, other)


async def test_where_no_worker_can_be_started_for_long_nobody_is_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "AGAIN", 0.05)
    monkeypatch.setattr(swapping, "GIVE_UP", 0.2)
    container = await holder(host)
    await host.command("pause", container, free_memory=True)
    tries = itertools.count(1)

    async def exhausted(pid: int, within: float) -> State:
        next(tries)
        raise CardError(Why.HUNG, 0, "No process can be started for it: Too many open files.")

    with monkeypatch.context() as until:
        until.setattr(host.up.swapping._card, "state", exhausted)
        await host.command("resume", container)
        begun = host.up.broker.now()
        await eventually(lambda: host.up.broker.now() > begun + 1.0 and next(tries) > 5)
    await ends_well(host, container)


async def test_a_limit_of_host_memory_that_could_not_be_lowered_is_lowered_later(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "AGAIN", 0.05)
    container = await holder(host)
    await host.command("pause", container, free_memory=True)
    lowered: list[int] = []

    async def away_at_first(engine_id: str, extra: int) -> None:
        lowered.append(extra)
        if len(lowered) == 1:
            raise EngineError("Docker does not answer.")

    monkeypatch.setattr(host.up.engine, "add_memory", away_at_first)
    await host.command("resume", container)
    await eventually(lambda: lowered == [0, 0])
    await ends_well(host, container)


async def test_a_full_disk_in_the_middle_of_it_holds_it_up_and_loses_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far it is has to be on the disk before each step."""
    monkeypatch.setattr(swapping, "FULL_AGAIN", 0.05)
    container, durable = await holder(host), host.up.store.durable
    stages: dict[str, int] = {}

    async def full_at_first() -> None:
        stage = host.up.broker.live_containers[str(container.pk)].swap
        stages[stage] = stages.get(stage, 0) + 1
        if stages[stage] < 3:
            raise OperationalError("database or disk is full")
        await durable()

    monkeypatch.setattr(host.up.store, "durable", full_at_first)
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    assert (await host.get(container)).state == "swapped"
    await host.command("resume", container)
    await eventually(lambda: stages == {Swap.LEAVING: 3, Swap.OUT: 3, Swap.COMING: 3, "": 3})
    monkeypatch.setattr(host.up.store, "durable", durable)
    await ends_well(host, container)


LATE = """
import os, sys, time
from tests.support.cuda import *
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.001)
print("asks for memory", flush=True)
address = Cuda().alloc(MIB)
print("late one has it", flush=True)
while not os.path.exists(sys.argv[1].removesuffix("-late")):
    time.sleep(0.01)
"""


async def test_a_paused_one_whose_memory_cannot_be_freed_for_want_of_descriptors_stays_paused(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on for a moment, to move its memory."""
    container = await holder(host)
    await host.command("pause", container)

    def short_of_them() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(host_memory_budget, "available", short_of_them)
        answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "host_short")
    assert (await host.get(container)).state == "paused"
    await host.command("resume", container)
    await ends_well(host, container)


async def test_a_paused_one_is_paused_again_though_the_next_scheduler_cannot_free_its_memory(
    host: Host, settings: Any
) -> None:
    """The last one had let it go on for that, and died."""
    container = await holder(host)
    await host.command("pause", container)
    live = host.up.broker.live_containers[str(container.pk)]
    async with host.up.swapping._transfer:
        command = await asked(host, "pause", container, free_memory=True)
        await eventually(lambda: not live.paused)
        await host.stop()
    assert (await host.get(container)).state == "running"
    settings.GPUSHARE_SWAP_MEMORY = 0
    await host.start()
    assert (await host.answer(command)).outcome == "refused"
    assert (await host.get(container)).state == "paused"
    await host.command("resume", container)
    await ends_well(host, container)


async def test_one_whose_move_fails_by_what_nobody_thought_of_is_as_it_was(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await holder(host)

    async def fails(engine_id: str, extra: int) -> None:
        if extra:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(host.up.engine, "add_memory", fails)
        answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "cannot_swap")
    assert host.up.broker.live_containers[str(container.pk)].swap == ""
    await ends_well(host, container)
