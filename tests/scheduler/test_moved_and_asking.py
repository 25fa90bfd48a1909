"""Who runs again may ask its card, whatever became of its container, of its others, and of the scheduler."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from scheduler.containers import swapping
from tests.support.eventually import PATIENCE, eventually, stopped
from tests.support.host import BUILD, GIB, Host, host, query
from tests.support.swapped import at_once, held_up
from web.models import Command, Container, Swap

__all__ = ["host"]


# It asks its card all the time, each time telling so; of SIGTERM it asks once more, and ends.
ASKER = """
import os, signal, sys, time
from tests.support.cuda import *
FORK
cuda = Cuda()
cuda.alloc(int(sys.argv[1]))
def save(*_):
    cuda("cuCtxSynchronize")
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("holding", flush=True)
while True:
    time.sleep(0.01)
    if os.path.exists(sys.argv[2]):
        cuda("cuCtxSynchronize")
        print("asked", os.getpid(), flush=True)
"""


async def asker(host: Host, processes: int = 1) -> Container:
    at_once()
    code = ASKER.replace("FORK", "os.fork()" if processes == 2 else "")
    words = (sys.executable, "-c", code, str(GIB), str(host.home / "ask"))
    container = await host.launch(*words, gpu_memory=4 * GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await eventually(lambda: host.log(container).count("holding") == processes)
    return container


async def test_who_is_killed_on_its_way_back_can_save_in_its_grace_what_it_has_on_its_card(host: Host) -> None:
    container = await asker(host)
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    live = host.up.broker.live_containers[str(container.pk)]
    with held_up():
        await host.command("resume", container)
        await eventually(lambda: live.swap == Swap.COMING)
        await begun(host, "kill", container, grace=PATIENCE)
        await eventually(lambda: live.killed)
    await host.until(container, "killed")
    assert "saved" in host.log(container)


@pytest.mark.parametrize("moment", [Swap.LEAVING, Swap.COMING])
async def test_who_is_killed_while_it_is_moved_can_save_under_the_next_scheduler_what_it_has_on_its_card(
    host: Host, moment: Swap
) -> None:
    container = await asker(host)
    if moment is Swap.COMING:
        assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    live = host.up.broker.live_containers[str(container.pk)]
    with held_up():
        await begun(host, "resume" if moment is Swap.COMING else "pause", container, free_memory=True)
        await eventually(lambda: live.swap == moment)
        await begun(host, "kill", container, grace=PATIENCE)
        await eventually(lambda: live.killed)
        stopping = asyncio.create_task(host.stop())
        await eventually(lambda: host._run is None)  # the scheduler has ended, the move has not
    await stopping
    assert (await host.get(container)).swap == moment
    await host.start()
    await host.until(container, "killed")
    assert "saved" in host.log(container)


async def begun(host: Host, kind: str, container: Container, **arguments: object) -> None:
    await query(Command.objects.create, kind=kind, container=container, arguments=arguments)
    host.up.commands.wake()


async def test_of_several_processes_one_that_goes_on_asks_though_another_is_not_back_yet(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move was undone, but for one that is stopped by a debugger, say: for as long as it is."""
    monkeypatch.setattr(swapping, "AGAIN", 0.1)
    container = await asker(host, 2)
    first, second = sorted(
        host.up.broker.live_containers[str(container.pk)].sessions.values(), key=lambda each: each.id
    )
    await stopped(second.pid)
    assert (await host.command("pause", container, free_memory=True)).outcome == "refused"
    (host.home / "ask").touch()
    await eventually(lambda: f"asked {first.pid}" in host.log(container))
    os.kill(second.pid, signal.SIGCONT)
    await eventually(lambda: f"asked {second.pid}" in host.log(container))
    await host.command("kill", container)
