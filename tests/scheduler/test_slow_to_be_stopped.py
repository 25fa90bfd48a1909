"""A program of many processes, each of which takes its time to be stopped: others wait for the transfer meanwhile."""

from __future__ import annotations

import time

import pytest

from scheduler.containers import moving
from tests.support.eventually import eventually
from tests.support.host import GIB, Host, host
from tests.support.swapped import at_once

__all__ = ["host"]


MANY = 16
SECONDS = 2.0


async def test_all_processes_together_have_the_time_of_one(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once()
    monkeypatch.setattr(moving, "LOCK_SECONDS", SECONDS)
    words = f"{host.workload} --bytes 4MiB --chunks 1 --compute 600 --kernel 60 --ahead 1"
    many = await host.launch("sh", "-c", f"for i in $(seq {MANY}); do {words} & done; wait", gpu_memory=2 * GIB)
    live = host.up.broker.live_containers[str(many.pk)]
    await eventually(lambda: len(live.sessions) == MANY and host.log(many).count("computed") >= MANY)
    begun = time.monotonic()
    answer = await host.command("pause", many, free_memory=True)
    took = time.monotonic() - begun
    assert answer.outcome == "refused", "each of them is done soon, and all of them are not"
    assert "was not done in time" in answer.message
    assert took < MANY * SECONDS / 2
    before = host.log(many).count("computed")
    await eventually(lambda: host.log(many).count("computed") >= before + MANY)
    assert not live.swap
