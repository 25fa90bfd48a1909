"""The scheduler ends, however it ends, and no program does; the next one takes over what it finds."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from scheduler.containers import takeover
from scheduler.sessions import lease_pages
from scheduler.starting import AlreadyRunning, only_one
from tests.support.eventually import eventually
from tests.support.host import GIB, MIB, Host, SeparateScheduler, query
from web.history.reports import report
from web.models import Container, Node

HOLD = ("--check", "1MiB", "--hold", "600")


@pytest.fixture
async def separate(transactional_db: None, tmp_path: Path) -> AsyncIterator[tuple[Host, SeparateScheduler]]:
    # `fifo` lets a later one's small context wait as well; here each is to have its own before its memory is asked for,
    # or the one that comes back first after a restart would have its context at once and wait anew, for its memory.
    host, scheduler = Host(tmp_path), SeparateScheduler(tmp_path, GPUSHARE_POLICY="best-fit")
    await scheduler.start()
    yield host, scheduler
    await scheduler.start()
    # At once: nobody tells it of a command, so it finds each at its next look, a second later.
    await asyncio.gather(*(host.command("kill", container) for container in await host.living()))
    await scheduler.stop()


async def asked_again(host: Host, container: Container, before: int) -> None:
    """Waits until the new scheduler has written down that this container waits: once more than `before` times."""
    for _ in range(3000):  # a minute
        if len(await host.events(container, "suspended")) > before:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{container} did not ask again")


async def told(host: Host, container: Container, right: Callable[[int], bool]) -> None:
    """Waits until the last event that says what this container uses is right about it."""
    for _ in range(3000):  # a minute
        said = [event.used_after for event in await host.events(container) if event.used_after is not None]
        if said and right(said[-1]):
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"the events of {container} do not say what it uses")


async def test_nothing_ends_when_the_scheduler_is_killed_and_the_suspended_one_resumes_in_turn(
    separate: tuple[Host, SeparateScheduler],
) -> None:
    host, scheduler = separate
    holder = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    first = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    first = await host.until(first, "suspended")
    second = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    second = await host.until(second, "suspended")

    told = [len(await host.events(container, "suspended")) for container in (first, second)]
    await scheduler.kill()
    begun_anew = timezone.now()  # by the next one at the earliest
    await scheduler.start()

    for container, before in zip((first, second), told, strict=True):
        await asked_again(host, container, before)  # who connects again first would else be the only one to be served
    assert (await host.get(holder)).state == "running"
    for before in (first, second):
        after = await host.until(before, "suspended")
        assert after.suspended_since is not None
        assert before.suspended_since - timedelta(seconds=0.1) < after.suspended_since < begun_anew
    assert (await host.get(first)).queue_position == 1
    used = (await host.claim(holder)).used
    assert used >= 3 * GIB
    await host.command("kill", holder)
    await host.says(first, "holding")
    await host.until(first, "running")
    assert (await host.get(second)).state == "suspended"
    await host.command("kill", first)
    await host.says(second, "holding")


async def test_allocations_inside_the_lease_go_on_without_a_scheduler_and_others_wait(
    separate: tuple[Host, SeparateScheduler],
) -> None:
    host, scheduler = separate
    go = host.home / "go"
    script = f"workload --bytes 256MiB --until {go}; workload --bytes 256MiB --check 1MiB"
    container = await host.launch("bash", "-c", script.replace("workload", str(host.workload)), gpu_memory=GIB)
    await host.says(container, "holding")
    await scheduler.kill()
    go.touch()
    await host.says(container, "done")
    await asyncio.sleep(0.2)
    assert host.log(container).count("done") == 1  # the second program asks, and nobody answers
    await scheduler.start()
    ended = await host.until(container, "exited")
    assert host.log(container).count("done") == 2
    assert ended.exit_code == 0


async def test_container_that_ended_meanwhile_is_seen(separate: tuple[Host, SeparateScheduler]) -> None:
    host, scheduler = separate
    go = host.home / "go"
    container = await host.launch("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 3")
    await scheduler.kill()
    go.touch()
    kept = host.home / "processes" / str(container.pk) / "ended.json"
    await eventually(kept.exists)
    seen_from = timezone.now()
    await scheduler.start()
    ended = await host.until(container, "failed")
    assert ended.exit_code == 3
    (event,) = await host.events(container, "ended")
    assert event.at == ended.finished_at
    assert event.at < seen_from  # a report charges until then, and not until the next scheduler


async def test_memory_that_came_back_meanwhile_is_told(separate: tuple[Host, SeparateScheduler]) -> None:
    host, scheduler = separate
    go = host.home / "go"
    script = f"{host.workload} --bytes 1GiB --until {go}; echo back; sleep 600"
    container = await host.launch("bash", "-c", script, gpu_memory=2 * GIB)
    await host.says(container, "holding")
    await told(host, container, lambda used: used >= GIB)
    await scheduler.kill()
    go.touch()
    await host.says(container, "back")
    await scheduler.start()
    await told(host, container, lambda used: used == 0)
    assert (await host.events(container))[-1].kind == "freed"


async def test_wait_that_goes_on_under_another_scheduler_is_one_wait_in_a_report(
    separate: tuple[Host, SeparateScheduler],
) -> None:
    host, scheduler = separate
    holder = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    waiter = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    waiter = await host.until(waiter, "suspended")
    for _ in range(2):
        before = len(await host.events(waiter, "suspended"))
        await scheduler.kill()
        await scheduler.start()
        await asked_again(host, waiter, before)
    await host.command("kill", holder)
    await host.says(waiter, "holding")
    waiter = await host.until(waiter, "running")
    later = timezone.now() + timedelta(hours=1)  # a wait that does not end would go on until then
    found = await query(report, later - timedelta(hours=2), later, "container")
    (row,) = [row for row in found.rows if row.group.startswith(waiter.name)]
    assert abs(row.suspended_microseconds / 1e6 - waiter.suspended_seconds) < 1


async def test_wait_that_nobody_asks_for_again_ends_in_a_report_when_it_does_on_the_screen(host: Host) -> None:
    holder = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    script = f"{host.workload} --bytes 3GiB & {host.workload} --bytes 3GiB & echo $!; wait; sleep 600"
    waiter = await host.launch("bash", "-c", script, gpu_memory=4 * GIB)
    for number in (1, 2):
        await asked_again(host, waiter, number - 1)
    sessions = list(host.up.broker.live_containers[str(waiter.pk)].sessions.values())
    await host.stop()
    for session in sessions:
        os.kill(session.pid, signal.SIGKILL)
    await host.start()
    host.up.broker.waits.stop_expecting()
    await host.up.store.flush()
    waiter = await host.get(waiter)
    assert waiter.suspended_since is None
    later = timezone.now() + timedelta(hours=1)
    found = await query(report, later - timedelta(hours=2), later, "container")
    (row,) = [row for row in found.rows if row.group.startswith(waiter.name)]
    assert abs(row.suspended_microseconds / 1e6 - waiter.suspended_seconds) < 1


async def test_sigterm_leaves_containers_running(separate: tuple[Host, SeparateScheduler]) -> None:
    host, scheduler = separate
    container = await host.launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=2 * GIB)
    await host.says(container, "holding")
    await scheduler.stop()
    await scheduler.start()
    assert (await host.get(container)).state == "running"
    claim = await host.claim(container)
    assert claim.used >= GIB + 60 * MIB


async def test_launches_under_a_scheduler_that_is_killed_run_once_each(
    separate: tuple[Host, SeparateScheduler],
) -> None:
    host, scheduler = separate
    folders = host.home / "processes"
    launched = []
    for number in (1, 3, 6):  # folders that are there when it is killed
        launches = [await host.start_launch("sh", "-c", "echo ran; exec sleep 600") for _ in range(6)]
        before = len(launched)
        await eventually(lambda: len(list(folders.iterdir())) >= before + number)  # noqa: B023 - awaited here
        await scheduler.kill()
        await scheduler.start()
        for container, command in launches:
            assert (await host.answer(command)).outcome == "done"
            launched.append(container)
    for container in launched:
        await host.says(container, "ran")
        assert (await host.get(container)).state == "running"
        assert host.log(container) == "ran\n"
        assert [event.kind for event in await host.events(container, "started", "ended")] == ["started"]


async def test_only_one_scheduler_works_in_a_home(separate: tuple[Host, SeparateScheduler], tmp_path: Path) -> None:
    with pytest.raises(AlreadyRunning), only_one(tmp_path):
        pass


def test_a_lock_that_is_let_go_in_a_moment_is_waited_for(tmp_path: Path) -> None:
    """A process that a killed scheduler was just starting has its lock until it executes its program."""
    with only_one(tmp_path):
        pass
    file = os.open(tmp_path / "scheduler.lock", os.O_WRONLY)
    fcntl.flock(file, fcntl.LOCK_EX)
    timer = threading.Timer(0.2, os.close, (file,))
    timer.start()
    with only_one(tmp_path):
        pass
    timer.join()


async def test_processes_that_keep_it_from_looking_are_looked_at_side_by_side(host, monkeypatch, caplog):
    """No look ends before three of one process each have begun."""
    begun, three = [], threading.Event()

    def look(pids, at_most):
        if len(pids) == 1:
            begun.extend(pids)
        if len(begun) >= 3:
            three.set()
        three.wait(60)
        return []

    monkeypatch.setattr(lease_pages, "holders", look)
    monkeypatch.setattr(takeover, "LOOK_SECONDS", 3.0)
    await host.stop()
    await host.start()
    assert three.is_set()
    assert "cannot be looked at" not in caplog.text


async def test_what_another_engine_runs_is_not_told_as_removed_and_waited_for(host: Host) -> None:
    """As if GPUSHARE_ENGINE had been changed: nobody here sees it."""
    container = await host.launch("sleep", "600")
    await host.stop()
    here = Container.objects.filter(pk=container.pk)
    await query(here.update, engine="docker")
    starting = asyncio.create_task(host.start())
    for _ in range(3000):  # a minute
        if (error := (await query(Node.objects.get)).engine_error) or starting.done():
            break
        await asyncio.sleep(0.02)
    assert (
        f"1 container ({container.name}) may live with the engine docker, of which process sees nothing. Start the "
        "scheduler with GPUSHARE_ENGINE=docker"
    ) in error
    await query(here.update, engine="process")
    await starting
    assert (await query(Node.objects.get)).engine_error == ""
    assert [event.kind for event in await host.events(container)] == ["started"]
    assert (await host.get(container)).state == "running"


async def test_policy_that_an_admin_has_chosen_is_that_of_the_next_scheduler(host: Host) -> None:
    assert (await host.command("policy", policy="best-fit")).outcome == "done"
    await host.stop()
    await host.start()
    assert host.up.broker.state.policy == (await query(Node.objects.get)).policy == "best-fit"
    await host.stop()
    await query(Node.objects.update, policy_asked="of yore")
    await host.start()
    assert host.up.broker.state.policy == "fifo"


async def test_warning_that_its_time_is_nearly_over_is_told_once(host: Host) -> None:
    container = await host.launch("sleep", "600", ttl_seconds=1000.0)
    began = timezone.now() - timedelta(seconds=940)
    host.up.broker.live_containers[str(container.pk)].started_at = began
    for _ in range(3000):  # a minute
        if await host.events(container, "warned"):
            break
        await asyncio.sleep(0.02)
    await host.stop()
    await query(Container.objects.filter(pk=container.pk).update, started_at=began)
    await host.start()
    for _ in range(3):
        host.up.time_limits.look()
    await host.up.store.flush()
    assert len(await host.events(container, "warned")) == 1
