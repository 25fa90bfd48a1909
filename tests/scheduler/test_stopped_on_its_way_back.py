"""A program that stops itself while its memory comes back: a restore is not broken off, and others need not wait."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from scheduler.containers import moving
from tests.support.eventually import PATIENCE, eventually, stopped
from tests.support.host import GIB, Host, host
from tests.support.swapped import ends_well, holder
from web.models import Swap

__all__ = ["host"]


async def test_whoever_else_is_moved_does_not_wait_for_one_that_stands_still(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    still, other = [await holder(host, size=GIB, quota=2 * GIB) for _ in range(2)]
    live = host.up.broker.live_containers[str(still.pk)]
    (session,) = live.sessions.values()
    assert (await host.command("pause", still, free_memory=True)).outcome == "done"
    restore = host.up.swapping._card.restore

    async def stopped_first(pid: int, within: float) -> object:
        if not began.is_set():
            await stopped(pid)
            began.set()
        return await restore(pid, within)

    began = asyncio.Event()
    monkeypatch.setattr(moving, "GRACE", 10 * PATIENCE)  # whoever waited for its restore would wait too long
    host.up.swapping._card.restore = stopped_first  # type: ignore[method-assign,assignment]
    await host.command("resume", still)
    await began.wait()
    assert (await host.command("pause", other, free_memory=True)).outcome == "done"
    await host.command("resume", other)
    await host.until(other, "running")
    assert live.swap == Swap.COMING
    os.kill(session.pid, signal.SIGCONT)
    await eventually(lambda: not live.swap)
    await ends_well(host, still)
    await ends_well(host, other)
