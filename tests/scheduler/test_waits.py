"""Each wait has one end, in the rows and in the events, whatever ends it: a death, a restart, or its owner's limit."""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta

from django.utils import timezone

from shim.binding import Type
from tests.support.host import GIB, MIB, Host, query
from tests.support.raw import Raw
from web.history.reports import report
from web.models import Container

HOLD = ("--check", "1MiB", "--hold", "600")


async def _waiting(host: Host) -> Container:
    """Suspended, behind one that holds 3 of 5 GiB. Its program is a child of the container's first process."""
    holder = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    waiter = await host.launch("bash", "-c", f"{host.workload} --bytes 3GiB & wait; sleep 600", gpu_memory=4 * GIB)
    return await host.until(waiter, "suspended")


def _pids(host: Host, container: Container) -> list[int]:
    return [session.pid for session in host.up.broker.live_containers[str(container.pk)].sessions.values()]


async def test_wait_ends_in_the_records_with_the_process_that_waited(host: Host) -> None:
    waiter = await _waiting(host)
    for pid in _pids(host, waiter):
        os.kill(pid, signal.SIGKILL)
    waiter = await host.until(waiter, "running")
    await host.up.store.flush()
    later = timezone.now() + timedelta(hours=1)  # a wait without an end would go on until then
    found = await query(report, later - timedelta(hours=2), later, "container")
    [row] = [row for row in found.rows if row.group.startswith(waiter.name)]
    assert abs(row.suspended_microseconds / 1e6 - waiter.suspended_seconds) < 1


async def test_wait_ends_with_a_container_that_ended_while_there_was_no_scheduler(host: Host) -> None:
    waiter = await _waiting(host)
    statuses = await host.up.engine.statuses()
    [engine_id] = [status.engine_id for status in statuses if status.id == str(waiter.pk)]
    await host.up.store.flush()
    engine = host.up.engine
    await host.stop()
    await engine.kill(engine_id)
    await host.start()
    waiter = await host.until(waiter, "failed")
    assert waiter.suspended_since is None
    assert waiter.suspended_seconds > 0


async def test_wait_from_before_a_restart_runs_out_once(host: Host) -> None:
    container = await host.launch("sleep", "600", gpu_memory=4 * GIB, max_wait_seconds=5)
    live = host.up.broker.live_containers[str(container.pk)]
    live.waited_since = live.suspended_since = host.up.broker.now() - 6  # as after a restart
    live.wait_told = True
    raw = await asyncio.to_thread(Raw, host.home / "sockets" / str(container.pk))
    await asyncio.to_thread(raw.hello)
    answers = []
    for serial in (1, 2):  # the card is empty
        raw.need(MIB, serial)
        answer = await asyncio.to_thread(raw.read)
        assert answer is not None
        answers.append(answer.type)
    raw.close()
    assert answers == [Type.REJECTED, Type.GRANTED]


async def test_clock_that_steps_does_not_end_a_wait_that_goes_on_under_another_scheduler(host: Host) -> None:
    holder = await host.launch("workload", "--bytes", "3GiB", "--check", "1MiB", "--hold", "600", gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    fields = {"gpu_memory": 4 * GIB, "max_wait_seconds": 3600}
    waiter = await host.launch("workload", "--bytes", "3GiB", "--check", "1MiB", "--hold", "600", **fields)
    waiter = await host.until(waiter, "suspended")
    before = len(await host.events(waiter, "suspended"))
    await host.stop()
    # As the wall's clock tells it once it has stepped forward by two hours.
    stepped = waiter.suspended_since - timedelta(hours=2)
    await query(Container.objects.filter(pk=waiter.pk).update, suspended_since=stepped)
    await host.start()
    for _ in range(3000):  # a minute
        if len(await host.events(waiter, "suspended")) > before:
            break
        await asyncio.sleep(0.02)
    assert await host.events(waiter, "rejected") == []
    await host.command("kill", holder)
    await host.says(waiter, "holding")
