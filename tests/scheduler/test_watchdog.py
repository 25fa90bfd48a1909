"""Whatever holds up the loop is measured, and told with what it was."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest

from scheduler.watchdog import LATE, Watchdog
from tests.support.eventually import eventually
from tests.support.host import Host, query
from web.models import Node


@pytest.fixture
async def watchdog() -> AsyncIterator[Watchdog]:
    watchdog = Watchdog()
    running = asyncio.create_task(watchdog.run())
    await asyncio.sleep(0)
    yield watchdog
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def hold_up(seconds: float) -> None:
    time.sleep(seconds)


async def test_what_held_up_the_loop_is_told_with_how_long_it_was(
    watchdog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "scheduler.watchdog"):
        hold_up(5 * LATE)
        await eventually(lambda: watchdog.times_late > 0)
    (told,) = caplog.messages[:1]
    assert "hold_up (test_watchdog.py:" in told
    assert watchdog.worst >= 4 * LATE
    assert watchdog.take_worst() >= 4 * LATE
    assert watchdog.worst < 4 * LATE, "it is counted anew"


def test_it_is_told_whether_the_scheduler_worked_or_stood(caplog: pytest.LogCaptureFixture) -> None:
    """The one is a fault of ours; the other a busy machine, and who tries the demo there is to know that."""
    now = [0.0]
    watchdog = Watchdog(lambda: now[0])
    with caplog.at_level(logging.WARNING, "scheduler.watchdog"):
        watchdog._note()
        end = time.thread_time() + 2 * LATE
        while time.thread_time() < end:
            pass
        now[0] += 2 * LATE
        watchdog._come_back()
        now[0] += 5 * LATE
        watchdog._come_back()
    worked, stood = caplog.messages
    assert "the scheduler was busy with" in worked
    assert "this machine had no processor or disk free for the scheduler" in stood
    assert "nothing is lost" in stood


async def test_a_loop_that_is_held_up_all_the_time_does_not_fill_the_log(
    watchdog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "scheduler.watchdog"):
        while watchdog.times_late < 9:
            hold_up(1.5 * LATE)
            await asyncio.sleep(0)
            await asyncio.sleep(0.03)
    assert len(caplog.messages) == 4


async def test_the_hosts_record_has_the_figure(host: Host) -> None:
    async def late() -> float:
        hold_up(3 * LATE)
        await asyncio.sleep(0.5)
        node = await query(Node.objects.get)
        return float(node.late)

    for _ in range(40):
        if await late() >= 2 * LATE:
            return
    raise AssertionError("what held it up was not written down")
