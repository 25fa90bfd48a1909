"""Turns with real programs, the helper's own processes and the guardian: all else is in test_turns.py."""

import asyncio
import os
import signal
import time

import pytest

from scheduler.card.helper import CardHelper, State
from scheduler.card.processes import LOCK_WITHIN
from scheduler.core.turns import Standing
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import GIB, Host, SeparateScheduler, host
from tests.support.running import of_a_scheduler
from web.models import Container

__all__ = ["host"]


ALWAYS = ("workload", "--bytes", "64MiB", "--check", "1MiB", "--compute", "600")


async def computing(host: Host, *more: str, **fields: object) -> Container:
    container = await host.launch(*ALWAYS, *more, **{"gpu_memory": GIB // 4, **fields})
    await host.says(container, "computed")
    return container


def units(host: Host, container: Container) -> int:
    """That its program says it has done so far."""
    return sum(int(line.split()[2]) for line in host.log(container).splitlines() if " computed " in line)


async def take_turns(host: Host, *containers: Container) -> None:
    """Waits until each has been stopped once."""
    for each in containers:
        await eventually(lambda: standing(host, each).held_back > 0)  # noqa: B023


def standing(host: Host, container: Container) -> Standing:
    its = host.up.turns.standing(str(container.pk))
    assert its is not None
    return its


async def goes_on(host: Host, *containers: Container) -> None:
    for each in containers:
        before = units(host, each)
        await eventually(lambda: units(host, each) > before)  # noqa: B023


KILLED = [("scheduler",), ("scheduler", "guardian"), ("scheduler", "helper")]
RARE = pytest.mark.long  # both at the same moment; the guardian alone: tests/card/test_guardian.py


@pytest.mark.parametrize(
    "killed", [pytest.param(each, marks=RARE if len(each) > 1 else (), id="+".join(each)) for each in KILLED]
)
async def test_a_killed_scheduler_leaves_nobody_stopped(host: Host, killed: tuple[str, ...]) -> None:
    pair = [await computing(host), await computing(host)]
    pids = [pid for each in pair for pid in host.up.computing.pids(str(each.pk))]
    helper = CardHelper({**os.environ, **host.up.gpus.environment})
    await host.stop()
    separate = SeparateScheduler(host.home)
    await separate.start()
    assert await helper.why_not() == ""

    async def states() -> set[State]:
        return {await helper.state(pid, 10) for pid in pids}

    async with asyncio.timeout(PATIENCE):
        while State.LOCKED not in await states():
            pass
    assert separate._process is not None
    parts = of_a_scheduler(separate._process.pid)
    for name in killed:
        for pid in parts.get(name, [separate._process.pid]):
            os.kill(pid, signal.SIGKILL)
    await separate.kill()
    began = time.monotonic()
    while State.LOCKED in await states():
        assert time.monotonic() < began + LOCK_WITHIN - 1  # at once, on a busy machine; by no deadline
    await host.start()
    await take_turns(host, *pair)
    await helper.close()
