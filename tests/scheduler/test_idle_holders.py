"""Containers that hold GPU memory and do not compute: marked, paused, their owners warned."""

import asyncio

from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from web.models import AuditEntry, Container


async def idle_holder(host: InProcess) -> Container:
    """It holds 1 GiB and has computed nothing for 5 s less than the ten minutes."""
    container = await host.launch("notebook", str(GIB), gpu_memory=4 * GIB)
    await host.says(container, "holding")
    await host.settle()  # from here on it is seen
    await host.passes(595)
    assert (await host.get(container)).idle_since is None
    return container


async def test_idle_holder_is_marked_and_paused_if_configured(host: InProcess, settings) -> None:
    settings.GPUSHARE_IDLE_ACTION = "pause"
    container = await idle_holder(host)
    await host.passes(6)
    idle = await host.until(container, "paused")
    assert idle.idle_since is not None
    assert [event.kind for event in await host.events(container, "idle")] == ["idle"]


async def test_owner_of_an_idle_holder_is_warned_if_configured(host: InProcess, settings) -> None:
    settings.GPUSHARE_IDLE_ACTION = "notify"
    container = await idle_holder(host)
    await host.passes(6)
    warned = AuditEntry.objects.filter(action="warn", actor="gpushare", subject=str(container.pk))
    await host.eventually(lambda: query(warned.exists))
    assert (await host.get(container)).state == "running"


async def test_mark_of_an_idle_holder_goes_when_it_computes_under_another_scheduler(host: InProcess) -> None:
    container = await idle_holder(host)
    await host.passes(6)
    assert (await host.get(container)).idle_since is not None
    await host.stop()
    host.process(container).asked.put_nowait("compute")
    await host.says(container, "cell 1")
    await host.start()
    await host.settle()
    assert (await host.get(container)).idle_since is None


async def test_time_in_a_pause_is_not_idle_time(host: InProcess, settings) -> None:
    settings.GPUSHARE_IDLE_ACTION = "pause"
    container = await idle_holder(host)
    await host.command("pause", container)
    await host.passes(600)
    await host.command("resume", container)
    await host.settle()
    await host.passes(595)
    assert (await host.get(container)).state == "running"
    await host.passes(10)
    await host.until(container, "paused")


async def test_cards_are_measured_while_the_database_does_not_take_what_an_idle_holder_sets_off(
    host: InProcess, settings, monkeypatch
) -> None:
    settings.GPUSHARE_IDLE_ACTION = "pause"
    asked = asyncio.Event()

    async def silent(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(host.up.intents, "pause", silent)
    await idle_holder(host)
    await host.passes(6)
    await host.eventually(asked.is_set)
    last = host.up.measure.readings
    await host.eventually(lambda: host.up.measure.readings is not last)
