"""While somebody of the scheduler before is still there, nobody is stopped for a turn: and nobody waits for that."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time

import pytest

from tests.scheduler.test_turns import computing, goes_on, take_turns
from tests.support.host import Host
from tests.support.swapped import at_once


@pytest.mark.parametrize("free_memory", [pytest.param(True, marks=pytest.mark.long), False])
async def test_a_pause_is_not_held_up_by_a_stop_that_waits_for_the_last_scheduler(
    host: Host, free_memory: bool
) -> None:
    at_once()
    await host.stop()
    last = os.open(host.home / "guardian.lock", os.O_RDONLY)
    fcntl.flock(last, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await host.start()
    one, two = [await computing(host) for _ in range(2)]
    await asyncio.sleep(6)  # one of them would have been stopped by then
    playing = [id_ for id_, part in host.up.turns._parts.items() if part.task is not None]
    if str(two.pk) in playing:
        one, two = two, one
    begun = time.monotonic()
    asyncio.get_running_loop().call_later(9.0, os.close, last)
    answer = await host.command("pause", one, free_memory=free_memory)
    took = time.monotonic() - begun
    assert answer.outcome == "done", answer.message
    assert took < (20 if free_memory else 5)
    await host.command("resume", one)
    await goes_on(host, one, two)
    await take_turns(host, one, two)
    assert not await host.events(one, "not_stopped")
