"""Who could not be looked at as a scheduler took over, the machine being busy, is found a little later, and meanwhile
nobody says that it is past the shim."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from pytest_django import Settings

from scheduler.card.helper import CardHelper, State
from scheduler.containers import swapping, takeover
from scheduler.monitors.measure import Measure
from scheduler.sessions import lease_pages
from tests.support.eventually import eventually, stopped
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
cuda.alloc(MIB)
print("goes on", flush=True)
time.sleep(600)
"""


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Looks at pages come too late until it is set."""
    over, find = threading.Event(), lease_pages.find

    def slowly(pid: int, container: str) -> int | None:
        assert over.wait(60)
        return find(pid, container)

    monkeypatch.setattr(takeover, "LOOK_SECONDS", 3.0)  # enough for the first: the other hangs
    monkeypatch.setattr(lease_pages, "find", slowly)
    yield over
    over.set()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often everything was measured so far."""
    once, times = Measure.once, [0]

    async def counted(self: Measure) -> None:
        await once(self)
        times[0] += 1

    monkeypatch.setattr(Measure, "once", counted)
    return lambda: times[0]


async def test_nobody_accuses_it_meanwhile_and_then_it_is_known(
    host: Host, settings: Settings, busy: threading.Event, measured: Callable[[], int]
) -> None:
    container = await host.launch("workload", "--bytes", "1536MiB", "--hold", "600", gpu_memory=2 * GIB)
    await host.says(container, "holding")
    await host.stop()
    settings.GPUSHARE_BYPASS_ACTION = "kill"
    await host.start()
    before = measured()
    await eventually(lambda: measured() >= before + 4)
    live = host.up.broker.live_containers[str(container.pk)]
    assert (live.sessions, live.past_shim, live.killed) == ({}, {}, False)
    busy.set()
    await eventually(lambda: live.sessions)
    await eventually(lambda: measured() >= before + 8)
    assert (len(live.sessions), live.past_shim, live.killed) == (1, {}, False)
    assert (await host.claim(container)).used >= GIB
    assert not host.up.broker.unseen


async def test_one_that_was_stopped_for_a_move_goes_on(host: Host, busy: threading.Event) -> None:
    words = (sys.executable, "-c", ASKS, str(host.home / "ask"))
    container = await host.launch(*words, gpu_memory=GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await host.says(container, "holding")
    (session,) = host.up.broker.live_containers[str(container.pk)].sessions.values()
    await host.stop()
    helper = CardHelper(host.up.gpus.environment | {"PYTHONPATH": str(BUILD.parent)})
    await helper.lock(session.pid, 10)
    assert await helper.state(session.pid, 10) is State.LOCKED
    await helper.close()
    await query(Container.objects.filter(pk=container.pk).update, swap=Swap.LEAVING)
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    await eventually(lambda: not live.swap)  # undone, of all that are known
    (host.home / "ask").touch()
    busy.set()
    await eventually(lambda: "goes on" in host.log(container))
    assert len(live.sessions) == 1


@pytest.mark.parametrize("stage", [Swap.LEAVING, Swap.COMING])
async def test_one_that_is_found_while_the_move_hangs_is_not_forgotten(
    host: Host, monkeypatch: pytest.MonkeyPatch, stage: Swap
) -> None:
    words = (sys.executable, "-c", f"import os; os.fork()\n{ASKS}", str(host.home / "ask"))
    container = await host.launch(*words, gpu_memory=GIB, environment={"PYTHONPATH": str(BUILD.parent)})
    await eventually(lambda: host.log(container).count("holding") == 2)
    first, late = (session.pid for session in host.up.broker.live_containers[str(container.pk)].sessions.values())
    await host.stop()
    helper = CardHelper(host.up.gpus.environment | {"PYTHONPATH": str(BUILD.parent)})
    for pid in (first, late):
        await helper.lock(pid, 10)
    await query(Container.objects.filter(pk=container.pk).update, swap=stage)
    await stopped(first)  # by itself, say: it answers nothing
    over, find = threading.Event(), lease_pages.find

    def slowly(pid: int, container: str) -> int | None:
        assert pid != late or over.wait(60)
        return find(pid, container)

    monkeypatch.setattr(takeover, "LOOK_SECONDS", 3.0)  # enough for the first: the other hangs
    monkeypatch.setattr(lease_pages, "find", slowly)
    monkeypatch.setattr(swapping, "AGAIN", 0.05)
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    assert {session.pid for session in live.sessions.values()} == {first}
    over.set()
    await eventually(lambda: len(live.sessions) == 2)
    assert live.swap == stage
    (host.home / "ask").touch()
    os.kill(first, signal.SIGCONT)
    await eventually(lambda: host.log(container).count("goes on") == 2)
    await eventually(lambda: live.swap == "")
    await helper.close()
