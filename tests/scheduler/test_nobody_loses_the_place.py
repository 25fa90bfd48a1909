"""Twenty wait, the scheduler is killed again and again, and whoever connects first has nothing before the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.eventually import PATIENCE
from tests.support.host import GIB, MIB, Host, SeparateScheduler
from web.models import Container

pytestmark = pytest.mark.long

WAIT = 20
RESTARTS = 3
HOLD = ("--check", "1MiB", "--hold", "600")


@pytest.fixture
async def separate(transactional_db: None, tmp_path: Path) -> AsyncIterator[tuple[Host, SeparateScheduler]]:
    host = Host(tmp_path)
    scheduler = SeparateScheduler(tmp_path, GPUSHARE_POLICY="fair", GPUSHARE_GIVE_WAY="off", GPUSHARE_COMPUTE="shared")
    await scheduler.start()
    yield host, scheduler
    await scheduler.start()
    await asyncio.gather(*(host.command("kill", container) for container in await host.living()))
    await scheduler.stop()


async def places(host: Host, containers: list[Container]) -> list[str]:
    """The names of those that wait, in their order."""
    rows = [await host.get(container) for container in containers]
    waiting = [row for row in rows if row.state == "suspended" and row.queue_position is not None]
    return [row.name for row in sorted(waiting, key=lambda row: row.queue_position)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def _all_asked(host: Host, containers: list[Container], before: list[int]) -> bool:
    return all(now > then for now, then in zip(await asked(host, containers), before, strict=True))


async def _in_places(host: Host, containers: list[Container], names: list[str]) -> bool:
    return await places(host, containers) == names


async def asked(host: Host, containers: list[Container]) -> list[int]:
    """How often each has been suspended."""
    return [len(await host.events(container, "suspended")) for container in containers]


async def test_nobody_loses_the_place_to_who_connects_first(separate: tuple[Host, SeparateScheduler]) -> None:
    host, scheduler = separate
    holder = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    waiting = []
    for _ in range(WAIT):
        container = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
        waiting.append(await host.until(container, "suspended"))
    names = [container.name for container in waiting]
    assert await places(host, waiting) == names
    # The first was alone, and has its context. Nobody's whole quota fits, so the others have nothing.
    used = [(await host.claim(container)).used for container in waiting]
    assert used[1:] == [0] * (WAIT - 1)

    for _ in range(RESTARTS):
        before = await asked(host, waiting)
        await scheduler.kill()
        await scheduler.start()

        await until(lambda before=before: _all_asked(host, waiting, before))
        await until(lambda: _in_places(host, waiting, names))
        assert [(await host.claim(container)).used for container in waiting] == used

    await host.command("kill", holder)
    await host.says(waiting[0], "holding")
    assert (await host.claim(waiting[0])).used >= 3 * GIB + 60 * MIB
    assert await places(host, waiting) == names[1:]
