"""Who could not be looked at as a scheduler took over, the machine being busy, is found a little later, and meanwhile
nobody says that it is past the shim."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from scheduler.card.helper import State
from scheduler.containers import takeover
from scheduler.containers.takeover import TakeOver
from scheduler.sessions import lease_pages
from scheduler.sessions.looks import detached_thread
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.memory import asking, asks
from web.models import Container, Swap

Late = Callable[[Callable[[int], bool]], asyncio.Event]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """Looks at pages of such processes come too late until the event is set."""

    def begin(whose: Callable[[int], bool]) -> asyncio.Event:
        over = asyncio.Event()

        async def slowly(call: Any, too_late: Any = None) -> Any:
            if call.func is lease_pages.find and whose(call.args[0]):
                await over.wait()
            return await detached_thread(call, too_late)

        monkeypatch.setattr(takeover, "detached_thread", slowly)
        return over

    return begin


async def test_nobody_accuses_it_meanwhile_and_then_it_is_known(
    host: InProcess, settings: Settings, late: Late
) -> None:
    container = await asking(host)
    await host.stop()
    settings.GPUSHARE_BYPASS_ACTION = "kill"
    over = late(lambda pid: True)
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    for known in (False, True):
        for _ in range(4):
            await host.settle()
        assert (len(live.sessions), live.past_shim, live.killed) == (known, {}, False)
        over.set()
        await host.eventually(lambda: live.sessions)
    await host.settle()
    assert (await host.claim(container)).used >= GIB
    assert not host.up.broker.unseen


async def test_one_that_was_stopped_for_a_move_goes_on(host: InProcess, late: Late) -> None:
    container = await asking(host)
    await host.stop()
    host.driver.states[host.process(container).pid] = State.LOCKED
    await query(Container.objects.filter(pk=container.pk).update, swap=Swap.LEAVING)
    over = late(lambda pid: True)
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    await host.eventually(lambda: not live.swap)  # undone, of all that are known
    over.set()
    await asks(host, container)
    assert len(live.sessions) == 1


@pytest.mark.parametrize("stage", [Swap.LEAVING, Swap.COMING])
async def test_one_that_is_found_while_the_move_hangs_is_not_forgotten(
    host: InProcess, late: Late, stage: Swap
) -> None:
    container = await asking(host, 2)
    first, second = host.processes(container)
    await host.stop()
    for process in (first, second):
        host.driver.states[process.pid] = State.LOCKED
    await query(Container.objects.filter(pk=container.pk).update, swap=stage)
    first.freeze()  # by itself, say: it answers nothing
    over = late(lambda pid: pid == second.pid)
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    assert {session.pid for session in live.sessions.values()} == {first.pid}
    over.set()
    await host.eventually(lambda: len(live.sessions) == 2)
    assert live.swap == stage
    first.freeze(False)
    await asks(host, container)
    await host.eventually(lambda: live.swap == "")


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_a_process_that_is_held_and_was_not_found_asks(
    host: InProcess, monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    """Its page an earlier scheduler had held, which was killed before it had locked it.

    `meanwhile`: it is heard as the move that was begun is undone, and not after that.
    """
    container = await asking(host)
    await host.stop()
    page = host.process(container).page
    assert page is not None
    page.hold(True)
    await query(Container.objects.filter(pk=container.pk).update, swap=Swap.LEAVING)

    async def sees_nobody(self: TakeOver) -> None:
        """As where the look at a process takes longer than LOOK_SECONDS."""

    async def once_it_is_heard(engine_id: str, extra: int) -> None:
        await host.eventually(lambda: host.up.broker.live_containers[str(container.pk)].sessions)

    if meanwhile:
        monkeypatch.setattr(host.engine, "add_memory", once_it_is_heard)
    with monkeypatch.context() as patched:
        patched.setattr(TakeOver, "_processes", sees_nobody)
        await host.start()
    await host.eventually(lambda: not host.up.broker.live_containers[str(container.pk)].swap)
    await asks(host, container)
