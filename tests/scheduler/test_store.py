"""What is remembered gets written, in order, whatever the database does meanwhile; and nothing waits for it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from statistics import quantiles

from django.contrib.auth.models import User
from django.db import OperationalError, connection

from scheduler import store
from tests.support.eventually import eventually
from tests.support.host import Host, query
from web.audit import verify
from web.models import AllocationEvent, Container, Node

RATE = 2000  # events a second
SECONDS = float(os.environ.get("GPUSHARE_TEST_LOAD_SECONDS", "5"))


async def _bystander() -> Container:
    owner = await query(User.objects.create, username="bystander")
    return await query(Container.objects.create, name="bystander", owner=owner, image="local")


def _sizes(container: Container) -> list[int]:
    return list(AllocationEvent.objects.filter(container=container).order_by("id").values_list("bytes", flat=True))


async def _lateness(seconds: float, work: Callable[[float], None]) -> list[float]:
    """By how much the event loop is late while `work` is done every 2 ms, told how long it has gone on."""
    loop = asyncio.get_running_loop()
    begun, late = loop.time(), []
    while (now := loop.time()) < begun + seconds:
        work(now - begun)
        asleep = loop.time()
        await asyncio.sleep(0.002)
        late.append(loop.time() - asleep - 0.002)
    return late


async def test_2000_events_a_second_are_written_without_delaying_a_decision(host: Host) -> None:
    container = await _bystander()
    gpu = next(iter(host.up.gpus.cards))
    told = 0

    def tell(elapsed: float) -> None:
        nonlocal told
        for number in range(told, int(elapsed * RATE)):
            host.up.store.event("accepted", str(container.pk), gpu=gpu, size=number, used_after=number, policy="fifo")
            told = number + 1

    usual = quantiles(await _lateness(2, lambda _: None), n=100)[98]
    late = quantiles(await _lateness(SECONDS, tell), n=100)[98]
    begun = time.perf_counter()
    await host.up.store.flush()
    await eventually(lambda: not host.up.store.waiting)
    print(f"{told / SECONDS:.0f} events/s; the loop was late by {late * 1e3:.1f} ms (p99), else {usual * 1e3:.1f} ms")
    assert time.perf_counter() - begun < 2.0
    assert late < max(0.05, 5 * usual)
    assert await query(_sizes, container) == list(range(told))
    sound, faults = await query(verify)
    assert faults == []
    assert sound > 0


async def test_locked_database_delays_no_decision_and_loses_nothing(host: Host) -> None:
    other = await asyncio.to_thread(sqlite3.connect, connection.settings_dict["NAME"], check_same_thread=False)
    await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
    host.up.store.node(driver="another")
    begun = time.perf_counter()
    await asyncio.sleep(0.3)
    assert time.perf_counter() - begun < 0.5
    await asyncio.to_thread(other.rollback)
    await asyncio.to_thread(other.close)
    await eventually(lambda: not host.up.store.waiting)
    assert (await query(Node.objects.get)).driver == "another"


async def test_failed_write_is_tried_again_with_everything_told_meanwhile(host: Host, monkeypatch) -> None:
    container = await _bystander()
    failures = iter([OperationalError("disk full"), OperationalError("disk full")])
    write = store._write

    def failing(*arguments: object) -> None:
        for failure in failures:
            raise failure
        write(*arguments)

    monkeypatch.setattr(store, "_write", failing)
    monkeypatch.setattr(store, "RETRY", 0.02)
    for number in range(3):
        host.up.store.event("accepted", str(container.pk), size=number)
        host.up.store.container(str(container.pk), reason=f"number {number}")
        await asyncio.sleep(0.03)
    await eventually(lambda: not host.up.store.waiting)
    sizes = await query(
        lambda: list(AllocationEvent.objects.filter(container=container).values_list("bytes", flat=True))
    )
    assert sizes == [0, 1, 2]
    assert (await query(Container.objects.get, pk=container.pk)).reason == "number 2"


async def test_promise_makes_and_changes_claims(host: Host) -> None:
    container = await _bystander()
    [gpu] = host.up.gpus.cards
    for size in (1 << 30, 2 << 30):
        await host.up.store.promise(container, {gpu: size}, within_allowance=True)
        assert await host.up.store.promised(container) == {gpu: size}
    host.up.store.claim(str(container.pk), gpu, used=4096, quota=1 << 30)
    await host.up.store.flush()
    claim = await query(container.claims.get)
    assert (claim.quota, claim.used) == (1 << 30, 4096)


async def test_row_that_the_database_will_never_take_does_not_hold_up_the_others(host: Host) -> None:
    container = await _bystander()
    told_to = host.up.store
    told_to.event("accepted", "00000000-0000-0000-0000-000000000000", size=1)  # no such container
    told_to.event("accepted", str(container.pk), size=2)
    told_to.container(str(container.pk), reason="told")
    await eventually(lambda: not told_to.waiting)
    assert await query(AllocationEvent.objects.filter(container=container).count) == 1
    assert (await query(Container.objects.get, pk=container.pk)).reason == "told"
