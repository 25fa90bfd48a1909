"""A scheduler that is killed or stopped ends no program; what else a restart must not lose is in test_restart.py."""

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from scheduler.containers import takeover
from scheduler.sessions import lease_pages
from scheduler.starting import AlreadyRunning, only_one
from tests.support.eventually import eventually
from tests.support.host import GIB, MIB, Host, SeparateScheduler, host
from web.models import Container

__all__ = ["host"]


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

    async def again() -> bool:
        return len(await host.events(container, "suspended")) > before

    await eventually(again)


async def uses(host: Host, container: Container, at_least: int) -> None:
    """Waits until the record says so: a new scheduler writes it once it has looked at the container's lease page."""

    async def written() -> bool:
        return (await host.claim(container)).used >= at_least

    await eventually(written)


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

    counts = [len(await host.events(container, "suspended")) for container in (first, second)]
    await scheduler.kill()
    begun_anew = timezone.now()  # by the next one at the earliest
    await scheduler.start()

    for container, before in zip((first, second), counts, strict=True):
        await asked_again(host, container, before)  # who connects again first would else be the only one to be served
    assert (await host.get(holder)).state == "running"
    for before in (first, second):
        after = await host.until(before, "suspended")
        assert after.suspended_since is not None
        assert before.suspended_since - timedelta(seconds=0.1) < after.suspended_since < begun_anew
    assert (await host.get(first)).queue_position == 1
    await uses(host, holder, 3 * GIB)
    await host.command("kill", holder)
    await host.says(first, "holding")
    await host.until(first, "running")
    assert (await host.get(second)).state == "suspended"
    await host.command("kill", first)
    await host.says(second, "holding")


async def test_sigterm_leaves_containers_running(separate: tuple[Host, SeparateScheduler]) -> None:
    host, scheduler = separate
    container = await host.launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=2 * GIB)
    await host.says(container, "holding")
    await scheduler.stop()
    await scheduler.start()
    assert (await host.get(container)).state == "running"
    await uses(host, container, GIB + 60 * MIB)


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
