"""A process that the take-over did not see, whose page an earlier scheduler had held: it may ask again."""

from __future__ import annotations

import sys

import pytest

from scheduler.containers.takeover import TakeOver
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, Host, host, query
from web.models import Container, Swap

__all__ = ["host"]


ASKS = """
import os, sys, time
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(MIB)
print("holding", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
cuda("cuCtxSynchronize")
print("asked", flush=True)
time.sleep(600)
"""


async def test_a_process_that_is_held_and_was_not_found_asks_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (sys.executable, "-c", ASKS, str(host.home / "ask"))
    container = await host.launch(*words, gpu_memory=GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await host.says(container, "holding")
    (session,) = host.up.broker.live_containers[str(container.pk)].sessions.values()
    await host.stop()
    session.page.hold(True)  # and that scheduler was killed before it had locked it
    await query(Container.objects.filter(pk=container.pk).update, swap=Swap.LEAVING)

    async def sees_nobody(self: TakeOver) -> None:
        """As where the look at a process takes longer than LOOK_SECONDS."""

    with monkeypatch.context() as patched:
        patched.setattr(TakeOver, "_processes", sees_nobody)
        await host.start()
    await eventually(lambda: not host.up.broker.live_containers[str(container.pk)].swap)
    (host.home / "ask").touch()
    await eventually(lambda: "asked" in host.log(container))
    assert not session.page.inside
