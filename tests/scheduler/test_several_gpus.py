"""Containers on a host with two GPUs: where they are put, and that each GPU has its own account."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from scheduler.gpus import uuid_bytes
from shim.binding import Code, Frame, Type, pack
from tests.support.host import GIB, MIB, query
from tests.support.inprocess.cards import CONTEXT
from tests.support.inprocess.host import InProcess, a_host_inside
from tests.support.inprocess.process import OutOfMemory, Process
from tests.support.inprocess.programs import workload
from web.models import Claim, Container, Gpu

HOLD = ("--hold", "600")


@pytest.fixture
async def two(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    async with a_host_inside(settings, gpus="sim:2x2GiB") as host:
        yield host


@pytest.fixture
async def larger(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    async with a_host_inside(settings, gpus="sim:2x5GiB") as host:
        yield host


async def _gpus_of(container: Container) -> list[int]:
    return await query(lambda: list(Claim.objects.filter(container=container).values_list("gpu__index", flat=True)))


async def test_containers_go_where_least_is_promised(two: InProcess) -> None:
    first = await two.launch("sleep", "600", gpu_memory=GIB)
    second = await two.launch("sleep", "600", gpu_memory=GIB // 2)
    third = await two.launch("sleep", "600", gpu_memory=GIB // 4)
    first_gpu, second_gpu, third_gpu = [(await _gpus_of(each))[0] for each in (first, second, third)]
    assert first_gpu != second_gpu
    assert third_gpu == second_gpu


async def test_gpu_asked_for_by_uuid_is_the_one(two: InProcess) -> None:
    uuid = (await query(Gpu.objects.get, index=1)).uuid
    for _ in range(2):
        container = await two.launch("sleep", "600", gpu_uuids=[uuid])
        assert await _gpus_of(container) == [1]


async def test_launch_that_a_scheduler_died_over_keeps_the_gpu_that_it_was_promised(two: InProcess) -> None:
    await two.stop()
    container, command = await two.start_launch("sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES; sleep 600")
    gpu = await query(Gpu.objects.get, index=1)  # not the one that an empty host would be filled from
    await query(Container.objects.filter(pk=container.pk).update, node=gpu.node_id)
    await query(Claim.objects.create, container=container, gpu=gpu, quota=GIB)
    await two.start()
    assert (await two.answer(command)).outcome == "done"
    assert await _gpus_of(container) == [1]
    await two.says(container, f"sees {gpu.uuid}")


async def test_each_gpu_of_a_container_has_its_own_quota(two: InProcess) -> None:
    async def on_both(process: Process) -> None:
        for gpu in "01":
            process.fork(workload, "--gpu", gpu, "--bytes", "900MiB", *HOLD)
        await process.terminated.wait()

    container = await two.launch(on_both, gpu_memory=GIB, gpu_count=2)
    await two.eventually(lambda: two.log(container).count("holding") == 2)
    await two.settle()
    assert await query(_column, container, "used") == [900 * MIB + CONTEXT] * 2


async def test_waiting_on_one_gpu_does_not_stop_the_other(two: InProcess) -> None:
    uuids = await query(lambda: list(Gpu.objects.values_list("uuid", flat=True)))
    holder = await two.launch("workload", "--bytes", "1500MiB", *HOLD, gpu_memory=2 * GIB, gpu_uuids=uuids[:1])
    await two.says(holder, "holding")
    waiter = await two.launch("workload", "--bytes", "1500MiB", *HOLD, gpu_memory=2 * GIB, gpu_uuids=uuids[:1])
    await two.until(waiter, "suspended")
    other = await two.launch("workload", "--bytes", "1500MiB", *HOLD, gpu_memory=2 * GIB, gpu_uuids=uuids[1:])
    await two.says(other, "holding")
    assert (await two.get(waiter)).state == "suspended"


async def test_a_wait_names_the_gpu_that_it_is_for(two: InProcess) -> None:
    uuids = await query(lambda: list(Gpu.objects.values_list("uuid", flat=True)))
    holder = await two.launch("workload", "--bytes", "1500MiB", *HOLD, gpu_memory=2 * GIB, gpu_uuids=uuids[1:])
    await two.says(holder, "holding")
    waiter = await two.launch("workload", "--gpu", "1", "--bytes", "900MiB", *HOLD, gpu_memory=GIB, gpu_uuids=uuids)
    await two.until(waiter, "suspended")
    await two.settle()
    assert await query(_column, waiter, "waiting") == [0, CONTEXT]
    await two.command("kill", holder)
    await two.says(waiter, "holding")
    await two.settle()
    assert await query(_column, waiter, "waiting") == [0, 0]


def _column(container: Container, name: str) -> list[int]:
    """Of its claims, by GPU."""
    return list(Claim.objects.filter(container=container).order_by("gpu__index").values_list(name, flat=True))


async def test_release_on_one_gpu_is_seen_though_the_socket_was_full_of_those_on_the_other(
    larger: InProcess,
) -> None:
    async def floods(process: Process) -> None:
        for slot in (0, 1):
            await process.need(3 * GIB, slot)
        process.say("has it")
        await process.asked.get()
        assert process.socket is not None
        assert process.page is not None
        try:
            while True:  # the scheduler, in this thread, reads nothing meanwhile
                process.socket.send(pack(Frame(Type.RELEASED, 0)))
        except BlockingIOError:
            process.page[1].release(3 * GIB)  # the shim drops what it cannot send
        await process.terminated.wait()

    both = await larger.launch(floods, gpu_memory=4 * GIB, gpu_count=2)
    await larger.says(both, "has it")
    gpu = await query(Gpu.objects.get, index=1)
    waiter = await larger.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB, gpu_uuids=[gpu.uuid])
    await larger.until(waiter, "suspended")
    larger.process(both).asked.put_nowait("flood")
    await larger.until(waiter, "running")


def lose(host: InProcess, index: int) -> str:
    """The card is not there any more."""
    uuid = list(host.cards.cards)[index]
    for its in (host.cards.cards, host.cards.held, host.cards.contexts, host.cards.computing):
        its.pop(uuid)
    return uuid


async def test_what_is_left_of_a_container_when_one_of_its_gpus_is_gone_stays_counted(larger: InProcess) -> None:
    async def holds(process: Process) -> None:
        for slot in (0, 1):
            await process.need(GIB, slot)
        process.hang_up()
        await process.asked.get()
        assert process.page is not None
        slot = process.page.uuids.index(uuid_bytes(left))
        assert slot == 1
        await process.need(GIB, slot)
        try:
            await process.need(GIB, 1 - slot)
        except OutOfMemory as error:
            process.say(f"refused: {error.code!r}")
        await process.terminated.wait()

    first, second = await query(lambda: list(Gpu.objects.order_by("index")))
    left = second.uuid
    container = await larger.launch(holds, gpu_uuids=[second.uuid, first.uuid], gpu_memory=2 * GIB)
    await larger.eventually(lambda: larger.process(container).page and not larger.process(container).socket)
    await larger.stop()
    assert lose(larger, 0) == first.uuid
    await larger.start()
    (live,) = larger.up.broker.live_containers.values()
    assert (list(live.quota), live.used(left)) == ([left], GIB)
    larger.process(container).asked.put_nowait("more")
    await larger.says(container, f"refused: {Code.SHORTAGE!r}")
    assert live.used(left) == 2 * GIB


async def test_container_whose_gpu_is_gone_after_a_restart_can_be_killed_and_its_end_is_seen(
    larger: InProcess,
) -> None:
    gpu = await query(Gpu.objects.get, index=1)
    killed, ended = [await larger.launch("sleep", "600", gpu_uuids=[gpu.uuid]) for _ in range(2)]
    await larger.stop()
    lose(larger, 1)
    await larger.start()
    refused = await larger.command("change", killed, gpu_memory=2 * GIB)
    assert (refused.outcome, refused.code) == ("refused", "unknown")
    assert (await larger.command("kill", killed)).outcome == "done"
    assert (await larger.get(killed)).state == "killed"
    await larger.engine.kill(str(ended.pk))
    assert (await larger.until(ended, "failed")).finished_at is not None


async def test_time_limit_holds_for_a_container_whose_gpu_is_gone(larger: InProcess) -> None:
    gpu = await query(Gpu.objects.get, index=1)
    container = await larger.launch("sleep", "6000", gpu_uuids=[gpu.uuid], ttl_seconds=600.0)
    await larger.stop()
    lose(larger, 1)
    await larger.start()
    await larger.passes(600)
    ended = await larger.until(container, "killed")
    assert ended.reason == "Its time limit of 600 s was reached."
