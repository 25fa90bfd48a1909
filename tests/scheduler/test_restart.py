"""The scheduler ends, and no program does; the next one takes over what it finds, and what is reported goes on.

Killed and stopped as a process: test_restart_processes.py.
"""

import asyncio
from datetime import timedelta

import pytest

from scheduler import clock
from tests.support.host import GIB, MIB, query
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import Process
from tests.support.inprocess.programs import workload
from web.history.reports import report
from web.models import Container, Node

HOLDS = ("workload", "--bytes", "3GiB", "--hold", "6000")


async def restarted(host: InProcess) -> None:
    """What the last one had not written is lost."""
    await host.crash()
    await host.start()


async def full(host: InProcess) -> Container:
    holder = await host.launch(*HOLDS, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    return holder


async def times_suspended(host: InProcess, container: Container) -> int:
    await host.up.store.flush()
    return len(await host.events(container, "suspended"))


async def waits_as_recorded(host: InProcess, waiter: Container) -> None:
    """A report has the same seconds of waiting as its row."""
    later = clock.now() + timedelta(hours=1)  # a wait that does not end would go on until then
    found = await query(report, later - timedelta(hours=2), later, "container")
    (row,) = [row for row in found.rows if row.group.startswith(waiter.name)]
    assert row.suspended_microseconds / 1e6 == pytest.approx(waiter.suspended_seconds, abs=0.01)


async def test_allocations_inside_the_lease_go_on_without_a_scheduler_and_others_wait(host: InProcess) -> None:
    async def more(process: Process) -> None:
        await process.alloc(256 * MIB)
        process.say("has more")

    async def allocates(process: Process) -> None:
        await process.alloc(256 * MIB)
        process.say("holding")
        await process.asked.get()
        await more(process)
        process.fork(more)
        await process.terminated.wait()

    container = await host.launch(allocates, gpu_memory=2 * GIB)
    await host.says(container, "holding")
    await host.stop()
    host.process(container).asked.put_nowait("more")
    await asyncio.sleep(1)
    assert host.log(container).count("has more") == 1  # the second process asks, and nobody answers
    await host.start()
    await host.eventually(lambda: host.log(container).count("has more") == 2)


async def test_container_that_ended_meanwhile_is_seen(host: InProcess) -> None:
    go = host.home / "go"
    container = await host.launch("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 3")
    await host.crash()
    go.touch()
    await host.eventually(host.engine.containers[str(container.pk)].ended.is_set)
    await asyncio.sleep(10)
    seen_from = clock.now()
    await host.start()
    ended = await host.until(container, "failed")
    assert ended.exit_code == 3
    (event,) = await host.events(container, "ended")
    assert event.at == ended.finished_at
    assert event.at < seen_from  # a report charges until then, and not until the next scheduler


async def test_memory_that_came_back_meanwhile_is_reported(host: InProcess) -> None:
    async def frees(process: Process) -> None:
        await process.alloc(GIB)
        await process.asked.get()
        await process.free(GIB)
        process.say("back")
        await process.terminated.wait()

    container = await host.launch(frees, gpu_memory=2 * GIB)

    async def said() -> int | None:
        await host.settle()
        sizes = [event.used_after for event in await host.events(container) if event.used_after is not None]
        return sizes[-1] if sizes else None

    await asyncio.sleep(2)
    used = await said()
    assert used is not None
    assert used > GIB
    await host.crash()
    host.process(container).asked.put_nowait("free")
    await host.says(container, "back")
    await host.start()
    await asyncio.sleep(2)
    assert await said() == used - GIB
    assert (await host.events(container))[-1].kind == "freed"


async def test_wait_that_goes_on_under_another_scheduler_is_one_wait_in_a_report(host: InProcess) -> None:
    holder = await full(host)
    waiter = await host.launch(*HOLDS, gpu_memory=4 * GIB)
    waiter = await host.until(waiter, "suspended")
    for times in (1, 2):
        before = await times_suspended(host, waiter)
        assert before == times
        await restarted(host)

        async def asked_again() -> bool:
            return await times_suspended(host, waiter) > before  # noqa: B023

        await host.eventually(asked_again)
    await host.command("kill", holder)
    await host.says(waiter, "holding")
    await waits_as_recorded(host, await host.until(waiter, "running"))


async def test_wait_that_nobody_asks_for_again_ends_in_a_report_when_it_does_on_the_screen(host: InProcess) -> None:
    async def two_wait(process: Process) -> None:
        for _ in range(2):
            process.fork(workload, "--bytes", "3GiB")
        await process.terminated.wait()

    await full(host)
    waiter = await host.launch(two_wait, gpu_memory=4 * GIB)
    await host.until(waiter, "suspended")
    _, *waiting = host.processes(waiter)
    await host.crash()
    for process in waiting:
        host.engine.kill_process(process.pid)
    await host.start()
    host.up.broker.waits.stop_expecting()
    await host.up.store.flush()
    waiter = await host.get(waiter)
    assert waiter.suspended_since is None
    await waits_as_recorded(host, waiter)


async def test_what_another_engine_runs_is_not_reported_as_removed_and_waited_for(host: InProcess) -> None:
    """As if GPUSHARE_ENGINE had been changed: nobody here sees it."""
    container = await host.launch("sleep", "600")
    await host.stop()
    here = Container.objects.filter(pk=container.pk)
    await query(here.update, engine="docker")
    starting = asyncio.create_task(host.start())

    async def engine_error() -> str:
        return str((await query(Node.objects.get)).engine_error)

    error = await host.eventually(engine_error)
    assert (
        f"1 container ({container.name}) may still run with the engine docker, which process cannot see. Start the "
        "scheduler with GPUSHARE_ENGINE=docker"
    ) in error
    await query(here.update, engine="process")
    await starting
    assert (await query(Node.objects.get)).engine_error == ""
    assert [event.kind for event in await host.events(container)] == ["started"]
    assert (await host.get(container)).state == "running"


async def test_policy_that_an_admin_has_chosen_is_that_of_the_next_scheduler(host: InProcess) -> None:
    assert (await host.command("policy", policy="best-fit")).outcome == "done"
    await host.stop()
    await host.start()
    assert host.up.broker.state.policy == (await query(Node.objects.get)).policy == "best-fit"
    await host.stop()
    await query(Node.objects.update, policy_asked="of yore")
    await host.start()
    assert host.up.broker.state.policy == "fifo"


async def test_warning_that_its_time_is_nearly_over_is_sent_once(host: InProcess) -> None:
    container = await host.launch("sleep", "6000", ttl_seconds=1000.0)
    await host.passes(945)
    assert len(await host.events(container, "warned")) == 1
    await restarted(host)
    for _ in range(3):
        await host.settle()
    assert len(await host.events(container, "warned")) == 1
