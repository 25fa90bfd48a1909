"""Twenty wait, the scheduler is killed again and again, and whoever connects first has nothing before the others."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.host import GIB, MIB
from tests.support.inprocess.host import InProcess, a_host_inside
from web.models import Container

WAIT = 20
RESTARTS = 3
WORDS = ("workload", "--bytes", "3GiB", "--hold", "60000")


@pytest.fixture
async def host(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    settings.GPUSHARE_GIVE_WAY, settings.GPUSHARE_COMPUTE = "off", "shared"
    async with a_host_inside(settings, policy="fair") as host:
        yield host


async def test_nobody_loses_the_place_to_who_connects_first(host: InProcess) -> None:
    async def places() -> list[str]:
        """The names of those that wait, in their order."""
        rows = [await host.get(container) for container in waiting]
        return [row.name for row in sorted(rows, key=lambda row: row.queue_position or 0) if row.state == "suspended"]

    async def used() -> list[int]:
        return [(await host.claim(container)).used for container in waiting]

    async def asked() -> list[int]:
        """How often each has been suspended."""
        return [len(await host.events(container, "suspended")) for container in waiting]

    async def all_asked() -> bool:
        return all(now > then for now, then in zip(await asked(), before, strict=True))

    holder = await host.launch(*WORDS, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    waiting: list[Container] = []
    for _ in range(WAIT):
        container = await host.launch(*WORDS, gpu_memory=4 * GIB)
        waiting.append(await host.until(container, "suspended"))
    names = [container.name for container in waiting]
    assert await places() == names
    # The first was alone, and has its context. Nobody's whole quota fits, so the others have nothing.
    first, *others = await used()
    assert others == [0] * (WAIT - 1)
    for _ in range(RESTARTS):
        before = await asked()
        await host.crash()
        await asyncio.sleep(1)
        await host.start()
        await host.eventually(all_asked)
        await host.settle()
        assert await places() == names
        assert await used() == [first, *others]
    await host.command("kill", holder)
    await host.says(waiting[0], "holding")
    await host.settle()
    assert (await used())[0] >= 3 * GIB + 60 * MIB
    assert await places() == names[1:]
