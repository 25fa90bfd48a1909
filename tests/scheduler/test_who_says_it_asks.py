"""A program whose processes say for ever that they ask their cards: what that costs whoever waits for the transfer."""

from __future__ import annotations

import os
import sys
import time

import pytest

from scheduler.containers import moving
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host, host
from tests.support.swapped import at_once

__all__ = ["host"]


SECONDS = 5.0  # more than a busy machine needs for all else
FOUR = """
import os, time
os.fork(), os.fork()
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(MIB)
print("holding", flush=True)
time.sleep(600)
"""


async def test_all_processes_together_are_waited_for_as_long_as_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once()
    monkeypatch.setattr(moving, "ASKED_WITHIN", SECONDS)
    container = await host.launch(
        sys.executable, "-c", FOUR, gpu_memory=2 * GIB, environment={"PYTHONPATH": str(BUILD.parent)}
    )
    await eventually(lambda: host.log(container).count("holding") == 4)
    for session in host.up.broker.live_containers[str(container.pk)].sessions.values():
        os.pwrite(session.page.fileno(), b"\1\0\0\0", 64)  # as each of them can
    begun = time.monotonic()
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    assert time.monotonic() - begun < 3 * SECONDS
    await host.command("resume", container)
    await eventually(lambda: not host.up.broker.live_containers[str(container.pk)].swap)
    await host.command("kill", container)
