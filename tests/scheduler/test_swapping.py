"""A pause that frees the card, on a real scheduler with real programs: nothing is lost, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import signal
import sys

import pytest

import shim.sim
from scheduler.card.helper import CardError, Done, State, Why
from scheduler.containers import swapping
from scheduler.engines.base import EngineError
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host, SeparateScheduler, query
from web.models import Claim, Command, Container, Gpu, Swap

LOCK, CHECKPOINT, RESTORE, UNLOCK = 1, 2, 3, 4
FAILS, HANGS, PROCESS_DIES, ASKER_DIES = 1, 2, 3, 4
STEPS = pytest.mark.parametrize("step", [LOCK, CHECKPOINT], ids=["lock", "checkpoint"])


def at_once() -> None:
    """The simulated card of this process moves memory without taking time."""
    shim.sim.load_nvml(BUILD).sim_card_speed(ctypes.c_uint64(0), ctypes.c_uint64(0))


def fault(step: int, how: int) -> None:
    shim.sim.load_nvml(BUILD).sim_card_fault(step, how)


# It holds memory, and looks whether every byte of it is right once it may go on.
HOLDER = """
import hashlib, os, sys, time
from tests.support.cuda import *
cuda, size, go_on = Cuda(), int(sys.argv[1]), sys.argv[2]
addresses = [cuda.alloc(size // 4) for _ in range(4)]
told = [hashlib.sha256(str(address).encode()).digest() * (MIB // 32) for address in addresses]
for address, data in zip(addresses, told):
    cuda.write(address + size // 4 - MIB, data)
print("holding", flush=True)
while not os.path.exists(go_on):
    time.sleep(0.01)
assert [cuda.read(address + size // 4 - MIB, MIB) for address in addresses] == told
for address in addresses:
    assert cuda.free(address) == 0
print("every byte is right", flush=True)
"""


async def holder(host: Host, size: int = 2 * GIB, quota: int = 4 * GIB, **fields: object) -> Container:
    at_once()
    words = (sys.executable, "-c", HOLDER, str(size), str(host.home / "go-on"))
    container = await host.launch(*words, gpu_memory=quota, environment={"PYTHONPATH": str(BUILD.parent)}, **fields)
    await host.says(container, "holding")
    return container


async def ends_well(host: Host, container: Container) -> Container:
    (host.home / "go-on").touch()
    ended = await host.until(container, "exited", 60)
    assert "every byte is right" in host.log(container)
    return ended


async def free_memory(host: Host) -> int:
    await host.up.measure.once()
    host.up.report.publish()
    await host.up.store.flush()
    gpu = await query(Gpu.objects.get)
    return gpu.real


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
    waits = await eventually(lambda: host.up.broker.tenants[str(container.pk)].suspended_since)
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
    await eventually(lambda: str(other.pk) not in host.up.broker.tenants)
    assert (await host.get(container)).state == "swapped"
    assert not host.up.broker.state.containers[str(container.pk)].returning
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


async def test_managed_memory_is_refused_and_goes_on(host: Host) -> None:
    at_once()
    code = (
        "import sys, time; from tests.support.cuda import *; cuda = Cuda(); address = c_uint64();"
        "cuda('cuMemAllocManaged', byref(address), c_size_t(8 * MIB), 1); print('has it', flush=True);"
        "time.sleep(0.5); [(cuda('cuCtxSynchronize'), time.sleep(0.05)) for _ in range(40)];"
        "print('went on', flush=True)"
    )
    root = str(BUILD.parent)
    container = await host.launch(sys.executable, "-c", code, environment={"PYTHONPATH": root})
    await host.says(container, "has it")
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "cannot_swap", 409)
    assert "managed memory" in answer.message
    assert (await host.get(container)).state == "running"
    assert (await host.get(container)).swap == ""
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
    host.up.swapping._budget = GIB
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
    tenant = host.up.broker.tenants[str(container.pk)]
    assert (tenant.swap, sum(tenant.used(gpu) for gpu in tenant.quota)) == (Swap.OUT, 0)
    other = await host.launch("workload", "--bytes", "4GiB", "--check", "1MiB", gpu_memory=5 * GIB)
    await host.until(other, "exited")
    await host.command("resume", container)
    await ends_well(host, container)


@pytest.mark.parametrize("moment", [Swap.LEAVING, Swap.OUT, Swap.COMING])
async def test_a_scheduler_killed_in_the_middle_leaves_nothing_half(host: Host, moment: Swap) -> None:
    """Slowly enough that the next one comes in between."""
    separate = SeparateScheduler(host.home, GPUSHARE_POLICY="fifo")
    container = await holder(host, GIB)
    await host.stop()
    shim.sim.load_nvml(BUILD).sim_card_speed(ctypes.c_uint64(GIB), ctypes.c_uint64(GIB))
    await separate.start()

    async def reached() -> None:
        for _ in range(2000):
            if (await host.get(container)).swap == moment:
                return
            await asyncio.sleep(0.005)

    command = asyncio.create_task(host.command("pause", container, free_memory=True))
    if moment is Swap.COMING:
        await command
        command = asyncio.create_task(host.command("resume", container))
    await reached()
    await separate.kill()
    await host.start()
    answer = await command
    assert answer.outcome == "done", answer.message
    if moment is not Swap.COMING:
        assert (await host.get(container)).state == "swapped"
        await host.command("resume", container)
    await ends_well(host, container)
    assert await query(Claim.objects.filter(used__gt=0).count) == 0


async def asked(host: Host, kind: str, container: Container, **arguments: object) -> Command:
    """A command that the scheduler has begun."""
    command = await query(Command.objects.create, kind=kind, container=container, arguments=arguments)
    host.up.commands.wake()
    await eventually(lambda: command.pk in host.up.commands._taken)
    return command


async def test_two_pauses_at_once_do_not_take_the_same_host_memory(host: Host) -> None:
    one, two = [await holder(host, GIB, quota=2 * GIB) for _ in range(2)]
    host.up.swapping._budget = 2 * GIB  # each holds 1 GiB and a context
    async with host.up.swapping._transfer:  # both wait for their turn
        commands = [await asked(host, "pause", each, free_memory=True) for each in (one, two)]
    outcomes = [(await host.answer(command)).outcome for command in commands]
    assert sorted(outcomes) == ["done", "refused"]
    for container, outcome in zip((one, two), outcomes, strict=True):
        if outcome == "done":
            await host.command("resume", container)
        await ends_well(host, container)


async def test_paused_while_it_waits_for_its_turn_to_come_back_it_stays_out(host: Host) -> None:
    container = await holder(host)
    await host.command("pause", container, free_memory=True)
    async with host.up.swapping._transfer:
        await host.command("resume", container)  # all of it is lent again
        assert host.up.broker.tenants[str(container.pk)].granted(only_gpu(host)) > 0
        assert (await host.command("pause", container)).outcome == "done"
        assert host.up.broker.tenants[str(container.pk)].granted(only_gpu(host)) == 0
    assert (await host.get(container)).state == "swapped"
    await host.command("resume", container)
    await ends_well(host, container)
    assert len(await host.events(container, "swapped_in")) == 1


def only_gpu(host: Host) -> str:
    (gpu,) = host.up.gpus.cards
    return gpu


async def test_a_pause_while_it_is_on_its_way_back_is_refused(host: Host) -> None:
    container = await holder(host, GIB)
    await host.command("pause", container, free_memory=True)
    shim.sim.load_nvml(BUILD).sim_card_speed(ctypes.c_uint64(GIB), ctypes.c_uint64(GIB))
    await host.command("resume", container)
    await eventually(lambda: host.up.broker.tenants[str(container.pk)].swap == Swap.COMING)
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


async def test_a_lock_that_is_done_after_it_was_given_up_is_undone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that was stopped from outside takes the lock once it goes on, and nobody waits for it any more."""
    monkeypatch.setattr(swapping, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr(swapping, "GRACE", 0.2)
    monkeypatch.setattr(swapping, "AGAIN", 0.1)
    container = await holder(host)
    (session,) = host.up.broker.tenants[str(container.pk)].sessions.values()
    os.kill(session.pid, signal.SIGSTOP)
    answer = await host.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    os.kill(session.pid, signal.SIGCONT)
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
    tenant, gpu = host.up.broker.tenants[str(container.pk)], only_gpu(host)
    await host.command("pause", container, free_memory=True)
    restore, calls = host.up.swapping._card.restore, itertools.count(1)

    async def no_room_for_the_second(pid: int, within: float) -> Done:
        if next(calls) == 2:
            assert tenant.granted(gpu) > 2 * GIB
            refused.set()
            raise CardError(Why.NO_ROOM, pid, "There is no room.", State.CHECKPOINTED)
        return await restore(pid, within)

    refused = asyncio.Event()
    monkeypatch.setattr(host.up.swapping._card, "restore", no_room_for_the_second)
    await host.command("resume", container)
    await refused.wait()
    for _ in range(20):  # whatever it does next
        assert tenant.granted(gpu) > 2 * GIB
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
    shim.sim.load_nvml(BUILD).sim_card_speed(ctypes.c_uint64(GIB), ctypes.c_uint64(GIB))
    command = await asked(host, "pause", container, free_memory=True)
    await eventually(lambda: host.up.broker.tenants[str(container.pk)].swap == Swap.LEAVING)
    (host.home / "go-on-late").touch()  # it asks for memory
    assert (await host.answer(command)).outcome == "done"
    assert await free_memory(host) == 0
    await host.command("resume", container)
    await host.says(container, "late one has it")
    await ends_well(host, container)


LATE = """
import os, sys, time
from tests.support.cuda import *
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.001)
address = Cuda().alloc(MIB)
print("late one has it", flush=True)
while not os.path.exists(sys.argv[1].removesuffix("-late")):
    time.sleep(0.01)
"""
