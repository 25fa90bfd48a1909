"""Swapping, and something else at the same moment: a second pause, a new process, a freeze, an end."""

import asyncio
import errno
import itertools
import os
from typing import Any

import pytest
from django.db import OperationalError

from scheduler.card.helper import CardError, State, Why
from scheduler.containers import host_memory_budget, swapping
from scheduler.engines.base import EngineError
from tests.support.host import GIB, MIB, query
from tests.support.inprocess.driver import HANGS
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.memory import ends_well, is_back, notebook, on_card
from tests.support.inprocess.process import Process
from tests.support.inprocess.programs import notebook as a_notebook
from web.models import Command, Container, Swap

LONG = 25.0  # seconds of a move: within what the scheduler waits for one


async def asked(host: InProcess, kind: str, container: Container, **arguments: object) -> Command:
    """A command that the scheduler has begun."""
    command = await query(Command.objects.create, kind=kind, container=container, arguments=arguments)
    host.up.commands.wake()
    await host.eventually(lambda: command.pk in host.up.commands._taken)
    return command


async def test_two_pauses_at_once_do_not_take_the_same_host_memory(host: InProcess) -> None:
    one, two = [await notebook(host, GIB, quota=2 * GIB) for _ in range(2)]
    host.up.swapping.budget = 2 * GIB  # each holds 1 GiB and a context
    async with host.up.swapping._transfer:  # both wait for their turn
        commands = [await asked(host, "pause", each, free_memory=True) for each in (one, two)]
    outcomes = [(await host.answer(command)).outcome for command in commands]
    assert sorted(outcomes) == ["done", "refused"]
    for container, outcome in zip((one, two), outcomes, strict=True):
        if outcome == "done":
            await host.command("resume", container)
        await ends_well(host, container)


async def test_nobody_takes_more_host_memory_than_they_leave_to_others(host: InProcess) -> None:
    """With their own pauses: of the budget, whoever is alone may have all."""
    first, second = [await notebook(host, GIB, quota=int(1.2 * GIB)) for _ in range(2)]
    theirs = await notebook(host, GIB, quota=int(1.2 * GIB), owner="bob")
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


async def test_paused_while_it_waits_for_its_turn_to_come_back_it_stays_out(host: InProcess) -> None:
    container = await notebook(host, 2 * GIB)
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


def only_gpu(host: InProcess) -> str:
    (gpu,) = host.up.gpus.cards
    return gpu


async def test_a_pause_while_it_is_on_its_way_back_is_refused(host: InProcess) -> None:
    container = await notebook(host, GIB)
    await host.command("pause", container, free_memory=True)
    host.driver.takes["restore"] = LONG
    await host.command("resume", container)
    await host.eventually(lambda: host.up.broker.live_containers[str(container.pk)].swap == Swap.COMING)
    answer = await host.command("pause", container)
    assert (answer.outcome, answer.code) == ("refused", "swapping")
    await ends_well(host, container)


async def test_a_freeze_that_fails_after_the_memory_is_out_brings_it_back(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(host, 2 * GIB)

    async def fails(engine_id: str) -> None:
        raise EngineError("It cannot be frozen.")

    monkeypatch.setattr(host.engine, "pause", fails)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    ended = await ends_well(host, container)
    assert (ended.swap, ended.swapped) == ("", 0)


async def test_one_that_is_given_time_to_end_while_it_is_on_its_way_back_comes_back(host: InProcess) -> None:
    """It stayed "coming" for all of its grace: past the turns, and counted as in host memory."""

    async def deaf(process: Process, *words: str) -> int:
        process.deaf = True
        return await a_notebook(process, *words)

    container = await host.launch(deaf, str(GIB), gpu_memory=4 * GIB)
    await host.says(container, "holding")
    await host.command("pause", container, free_memory=True)
    live = host.up.broker.live_containers[str(container.pk)]
    host.driver.takes["restore"] = LONG
    await host.command("resume", container)
    await host.eventually(lambda: live.swap == Swap.COMING)
    killing = await asked(host, "kill", container, grace=600)
    await host.eventually(lambda: live.killed)
    assert live.swap == Swap.COMING
    await host.eventually(lambda: live.swap == "")
    host.process(container).asked.put_nowait("end")
    assert (await host.answer(killing)).outcome == "done"


async def test_a_lock_that_is_done_after_it_was_given_up_is_undone(host: InProcess) -> None:
    """A program that was stopped from outside takes the lock once it goes on, and nobody waits for it any more."""
    container = await notebook(host, 2 * GIB)
    host.process(container).freeze()
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    assert "is stopped, by a signal or a debugger" in answer.message
    host.process(container).freeze(False)
    await ends_well(host, container)


async def test_one_that_is_stopped_for_a_turn_and_does_not_answer_is_not_moved(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is let go as soon as it answers, and whoever runs again within a checkpoint does not survive it."""

    async def silent(container: str) -> bool:
        return False

    container = await notebook(host, 2 * GIB)
    with monkeypatch.context() as patched:
        patched.setattr(host.up.turns, "settled", silent)
        answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    assert "still stopped for its turn" in answer.message
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    await host.command("resume", container)
    await ends_well(host, container)


async def test_a_program_that_stops_itself_holds_up_nobody_elses_transfer(host: InProcess) -> None:
    """It answers nothing, and each of its calls was waited for half a minute, one transfer after the other."""
    hostile, other = [await notebook(host, GIB, quota=2 * GIB) for _ in range(2)]
    host.process(hostile).freeze()
    command = await asked(host, "pause", hostile, free_memory=True)
    await host.eventually(host.up.swapping._transfer.locked)
    begun = host.loop.time()
    assert (await host.command("pause", other, free_memory=True)).outcome == "done"
    assert host.loop.time() - begun < 5
    assert (await host.answer(command)).outcome == "refused"
    host.process(hostile).freeze(False)
    await host.command("resume", other)
    for container in (hostile, other):
        await ends_well(host, container)


async def two_processes(process: Process, size: str) -> int:
    process.fork(a_notebook, size)
    return await a_notebook(process, size)


async def test_of_several_processes_none_is_counted_out_that_is_back(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The card had no room for the second: the first is back, and what it holds is nobody else's."""
    container = await host.launch(two_processes, str(GIB), gpu_memory=4 * GIB)
    await host.eventually(lambda: host.log(container).count("holding") == 2)
    live, gpu = host.up.broker.live_containers[str(container.pk)], only_gpu(host)
    await host.command("pause", container, free_memory=True)
    restore, calls = host.up.swapping._card.restore, itertools.count(1)

    async def no_room_for_the_second(pid: int, *more: Any) -> Any:
        if next(calls) == 2:
            raise CardError(Why.NO_ROOM, pid, "There is no room.", State.CHECKPOINTED)
        return await restore(pid, *more)

    monkeypatch.setattr(host.up.swapping._card, "restore", no_room_for_the_second)
    await host.command("resume", container)
    await host.eventually(lambda: next(calls) > 2)
    while live.swap:  # whatever it does next
        assert live.granted(gpu) > 2 * GIB
        await asyncio.sleep(0.1)
    await ends_well(host, container)


async def test_a_process_that_comes_while_the_memory_leaves_gets_none_before_it_is_back(host: InProcess) -> None:
    """Else its own, which stays on the card, would be counted as out, and lent to others."""

    async def late(process: Process) -> None:
        process.say("asks for memory")
        await process.alloc(MIB)
        process.say("late one has it")
        await process.terminated.wait()

    container = await notebook(host, GIB)
    host.driver.takes["checkpoint"] = LONG
    command = await asked(host, "pause", container, free_memory=True)
    await host.eventually(lambda: host.up.broker.live_containers[str(container.pk)].swap == Swap.LEAVING)
    host.process(container).fork(late)
    await host.says(container, "asks for memory")
    assert (await host.answer(command)).outcome == "done"
    assert await on_card(host) == 0
    await host.command("resume", container)
    await host.says(container, "late one has it")
    await ends_well(host, container)


async def test_where_the_driver_answers_nothing_for_long_it_is_ended_with_its_reason(host: InProcess) -> None:
    """After ten minutes."""
    container, other = [await notebook(host, GIB, quota=2 * GIB) for _ in range(2)]
    host.driver.faults["checkpoint"] = HANGS
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "cannot_swap")
    assert (await host.get(container)).state == "running"
    live = host.up.broker.live_containers[str(container.pk)]
    await host.passes(swapping.GIVE_UP / 2)
    assert not live.finished
    while not live.finished:
        await host.passes(swapping.LONGEST)
    ended = await host.until(container, "killed")
    assert "Its GPU memory was lost on the way" in ended.reason
    assert "did not answer" in ended.reason
    assert (await host.returned(container)).granted == 0
    host.driver.faults.clear()
    assert (await host.command("pause", other, free_memory=True)).outcome == "done"
    await host.command("resume", other)
    await ends_well(host, other)


async def test_where_no_worker_can_be_started_for_long_nobody_is_ended(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(host, 2 * GIB)
    await host.command("pause", container, free_memory=True)

    async def exhausted(pid: int, within: float) -> State:
        raise CardError(Why.HUNG, 0, "No process can be started for it: Too many open files.")

    with monkeypatch.context() as until:
        until.setattr(host.up.swapping._card, "state", exhausted)
        await host.command("resume", container)
        for _ in range(5):
            await host.passes(swapping.GIVE_UP)
    await ends_well(host, container)


async def test_a_limit_of_host_memory_that_could_not_be_lowered_is_lowered_later(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(host, 2 * GIB)
    await host.command("pause", container, free_memory=True)
    lowered: list[int] = []

    async def away_at_first(engine_id: str, extra: int) -> None:
        lowered.append(extra)
        if len(lowered) == 1:
            raise EngineError("Docker does not answer.")

    monkeypatch.setattr(host.engine, "add_memory", away_at_first)
    await host.command("resume", container)
    await host.eventually(lambda: lowered == [0, 0])
    await ends_well(host, container)


async def test_a_full_disk_in_the_middle_of_it_holds_it_up_and_loses_nothing(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far it is has to be on the disk before each step."""
    container, durable = await notebook(host, 2 * GIB), host.up.store.durable
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
    await host.eventually(lambda: stages == {Swap.LEAVING: 3, Swap.OUT: 3, Swap.COMING: 3, "": 3})
    monkeypatch.setattr(host.up.store, "durable", durable)
    await ends_well(host, container)


async def test_a_paused_one_whose_memory_cannot_be_freed_for_want_of_descriptors_stays_paused(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on for a moment, to move its memory."""
    container = await notebook(host, 2 * GIB)
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
    host: InProcess, settings: Any
) -> None:
    """The last one had let it go on for that, and died."""
    container = await notebook(host, 2 * GIB)
    await host.command("pause", container)
    live = host.up.broker.live_containers[str(container.pk)]
    async with host.up.swapping._transfer:
        command = await asked(host, "pause", container, free_memory=True)
        await host.eventually(lambda: not live.paused)
        await host.stop()
    assert (await host.get(container)).state == "running"
    settings.GPUSHARE_SWAP_MEMORY = 0
    await host.start()
    assert (await host.answer(command)).outcome == "refused"
    assert (await host.get(container)).state == "paused"
    await host.command("resume", container)
    await ends_well(host, container)


async def test_one_whose_move_fails_by_what_nobody_thought_of_is_as_it_was(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await notebook(host, 2 * GIB)

    async def fails(engine_id: str, extra: int) -> None:
        if extra:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(host.engine, "add_memory", fails)
        answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "cannot_swap")
    assert host.up.broker.live_containers[str(container.pk)].swap == ""
    await ends_well(host, container)
