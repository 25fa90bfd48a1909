"""Containers on a host with two GPUs: where they are put, and that each GPU has its own account."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from scheduler.gpus import Gpus, uuid_bytes
from shim.binding import Code, Frame, Type, pack
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import GIB, MIB, Host, SeparateScheduler, a_host, query
from tests.support.raw import Raw
from web.models import Claim, Container, Gpu

CONTEXT = 66 * MIB
HOLD = ("--check", "1MiB", "--hold", "600")


@pytest.fixture
async def scheduler(transactional_db: None, tmp_path: Path) -> AsyncIterator[SeparateScheduler]:
    scheduler = SeparateScheduler(tmp_path, GPUSHARE_GPUS="sim:2x2GiB")
    await scheduler.start()
    yield scheduler
    await scheduler.stop()


@pytest.fixture
async def two(tmp_path: Path, scheduler: SeparateScheduler) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    yield host
    await asyncio.gather(*(host.command("kill", container) for container in await host.living()))


async def _gpus_of(container: Container) -> list[int]:
    return await query(lambda: list(Claim.objects.filter(container=container).values_list("gpu__index", flat=True)))


async def test_containers_go_where_least_is_promised(two: Host) -> None:
    first = await two.launch("sleep", "600", gpu_memory=GIB)
    second = await two.launch("sleep", "600", gpu_memory=GIB // 2)
    third = await two.launch("sleep", "600", gpu_memory=GIB // 4)
    first_gpu, second_gpu, third_gpu = [(await _gpus_of(each))[0] for each in (first, second, third)]
    assert first_gpu != second_gpu
    assert third_gpu == second_gpu


async def test_gpu_asked_for_by_uuid_is_the_one(two: Host) -> None:
    uuid = (await query(Gpu.objects.get, index=1)).uuid
    for _ in range(2):
        container = await two.launch("sleep", "600", gpu_uuids=[uuid])
        assert await _gpus_of(container) == [1]


async def test_launch_that_a_scheduler_died_over_keeps_the_gpu_that_it_was_promised(
    two: Host, scheduler: SeparateScheduler
) -> None:
    await scheduler.kill()
    container, command = await two.start_launch("sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES; sleep 600")
    gpu = await query(Gpu.objects.get, index=1)  # not the one that an empty host would be filled from
    await query(Container.objects.filter(pk=container.pk).update, node=gpu.node_id)
    await query(Claim.objects.create, container=container, gpu=gpu, quota=GIB)
    await scheduler.start()
    assert (await two.answer(command)).outcome == "done"
    assert await _gpus_of(container) == [1]
    await two.says(container, f"sees {gpu.uuid}")


async def test_each_gpu_of_a_container_has_its_own_quota(two: Host) -> None:
    script = "workload --gpu 0 --bytes 900MiB HOLD & workload --gpu 1 --bytes 900MiB HOLD & wait"
    words = script.replace("workload", str(two.workload)).replace("HOLD", " ".join(HOLD))
    container = await two.launch("sh", "-c", words, gpu_memory=GIB, gpu_count=2)
    async with asyncio.timeout(PATIENCE):
        while await query(lambda: _used(container)) != [900 * MIB + CONTEXT] * 2:  # noqa: ASYNC110 - rows of the database
            await asyncio.sleep(0.05)
    await eventually(lambda: two.log(container).count("holding") == 2)


async def test_waiting_on_one_gpu_does_not_stop_the_other(two: Host) -> None:
    uuids = await query(lambda: list(Gpu.objects.values_list("uuid", flat=True)))
    holder = await two.launch("workload", "--bytes", "1500MiB", *HOLD, gpu_memory=2 * GIB, gpu_uuids=uuids[:1])
    await two.says(holder, "holding")
    waiter = await two.launch("workload", "--bytes", "1500MiB", *HOLD, gpu_memory=2 * GIB, gpu_uuids=uuids[:1])
    await two.until(waiter, "suspended")
    other = await two.launch("workload", "--bytes", "1500MiB", *HOLD, gpu_memory=2 * GIB, gpu_uuids=uuids[1:])
    await two.says(other, "holding")
    assert (await two.get(waiter)).state == "suspended"


async def test_a_wait_is_told_of_the_gpu_that_it_is_for(two: Host) -> None:
    uuids = await query(lambda: list(Gpu.objects.values_list("uuid", flat=True)))
    holder = await two.launch("workload", "--bytes", "1500MiB", *HOLD, gpu_memory=2 * GIB, gpu_uuids=uuids[1:])
    await two.says(holder, "holding")
    waiter = await two.launch("workload", "--gpu", "1", "--bytes", "900MiB", *HOLD, gpu_memory=GIB, gpu_uuids=uuids)
    await two.until(waiter, "suspended")
    assert await _waits_of(waiter, lambda first, second: second > 0) == [0, CONTEXT]
    await two.command("kill", holder)
    await two.says(waiter, "holding")
    assert await _waits_of(waiter, lambda first, second: second == 0) == [0, 0]


async def _waits_of(container: Container, enough: Callable[[int, int], bool]) -> list[int]:
    """By GPU, once they are as wanted."""
    async with asyncio.timeout(PATIENCE):
        while not enough(*(waits := await query(lambda: _waiting(container)))):  # noqa: ASYNC110 - rows of the database
            await asyncio.sleep(0.05)
    return waits


def _used(container: Container) -> list[int]:
    return list(Claim.objects.filter(container=container).values_list("used", flat=True))


def _waiting(container: Container) -> list[int]:
    return list(Claim.objects.filter(container=container).values_list("waiting", flat=True))


def _fill(sock: socket.socket, frame: bytes) -> None:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(frame)


async def test_release_on_one_gpu_is_seen_though_the_socket_was_full_of_those_on_the_other(
    transactional_db: None, settings, tmp_path: Path
) -> None:
    async with a_host(settings, tmp_path, gpus="sim:2x5GiB") as host:
        both = await host.launch("sleep", "600", gpu_memory=4 * GIB, gpu_count=2)
        raw = await asyncio.to_thread(Raw, host.home / "sockets" / str(both.pk))
        page = await asyncio.to_thread(raw.hello)
        for slot in (0, 1):
            raw.need(3 * GIB, slot + 1, slot)
            assert (await asyncio.to_thread(raw.read)).type == Type.GRANTED
        gpu = await query(Gpu.objects.get, index=1)
        waiter = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB, gpu_uuids=[gpu.uuid])
        await host.until(waiter, "suspended")
        _fill(raw.socket, pack(Frame(Type.RELEASED, 0)))  # the scheduler, in this thread, reads nothing meanwhile
        assert page[1].release(3 * GIB)  # the shim drops what it cannot send
        await host.until(waiter, "running")
        raw.close()


async def test_what_is_left_of_a_container_when_one_of_its_gpus_is_gone_stays_counted(
    transactional_db: None, settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Gpus.open

    async def without_the_first(*arguments: object) -> Gpus:
        gpus = await opened(*arguments)  # type: ignore[arg-type]
        first = next(iter(gpus.cards))
        del gpus.cards[first], gpus._handles[first]
        return gpus

    async with a_host(settings, tmp_path, gpus="sim:2x5GiB") as host:
        first, second = await query(lambda: list(Gpu.objects.order_by("index")))
        container = await host.launch("sleep", "600", gpu_uuids=[second.uuid, first.uuid], gpu_memory=2 * GIB)
        raw = await asyncio.to_thread(Raw, host.up.server.socket_dir(str(container.pk)))
        page = await asyncio.to_thread(raw.hello)
        assert page is not None
        for slot in (0, 1):
            raw.need(GIB, serial=slot, slot=slot)
            assert await asyncio.to_thread(raw.read) is not None
            page[slot].accept(GIB)
        raw.close()
        await host.stop()
        monkeypatch.setattr(Gpus, "open", without_the_first)
        await host.start()
        again = await asyncio.to_thread(Raw, host.up.server.socket_dir(str(container.pk)))
        await asyncio.to_thread(again.hello)
        (live,) = host.up.broker.live_containers.values()
        (left,) = live.quota
        slot = page.uuids.index(uuid_bytes(left))
        assert slot == 1
        assert live.used(left) == GIB
        again.need(GIB, serial=7, slot=slot)
        assert await asyncio.to_thread(again.read) == Frame(Type.GRANTED, slot, 7, bytes=GIB)
        again.need(GIB, serial=8, slot=1 - slot)
        assert await asyncio.to_thread(again.read) == Frame(Type.REJECTED, 1 - slot, 8, Code.SHORTAGE)
        again.close()


async def test_container_whose_gpu_is_gone_after_a_restart_can_be_killed_and_its_end_is_seen(
    transactional_db: None, settings, tmp_path: Path
) -> None:
    async with a_host(settings, tmp_path, gpus="sim:2x5GiB") as host:
        gpu = await query(Gpu.objects.get, index=1)
        killed, ended = [await host.launch("sleep", "600", gpu_uuids=[gpu.uuid]) for _ in range(2)]
        await host.stop()
        settings.GPUSHARE_GPUS = "sim:1x5GiB"
        await host.start()
        refused = await host.command("change", killed, gpu_memory=2 * GIB)
        assert (refused.outcome, refused.code) == ("refused", "unknown")
        assert (await host.command("kill", killed)).outcome == "done"
        assert (await host.get(killed)).state == "killed"
        [engine_id] = [each.engine_id for each in await host.up.engine.statuses() if each.id == str(ended.pk)]
        await host.up.engine.kill(engine_id)
        assert (await host.until(ended, "failed")).finished_at is not None


async def test_time_limit_holds_for_a_container_whose_gpu_is_gone(
    transactional_db: None, settings, tmp_path: Path
) -> None:
    async with a_host(settings, tmp_path, gpus="sim:2x5GiB") as host:
        gpu = await query(Gpu.objects.get, index=1)
        container = await host.launch("sleep", "600", gpu_uuids=[gpu.uuid], ttl_seconds=600.0)
        await host.stop()
        await query(Container.objects.filter(pk=container.pk).update, ttl_seconds=0.5)
        settings.GPUSHARE_GPUS = "sim:1x5GiB"
        await host.start()
        ended = await host.until(container, "killed")
        assert ended.reason == "Its time of 0.5 s was over."
