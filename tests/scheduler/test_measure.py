"""What the card shows against what was charged: overhead, foreign memory, processes past the shim, contexts."""

import asyncio
from functools import partial

import pytest
from pytest_django import Settings

from scheduler.core.events import Returned
from scheduler.gpus import Reading
from scheduler.monitors import measure
from tests.support.host import GIB, MIB, query
from tests.support.inprocess.cards import CONTEXT
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import OutOfMemory, Process
from web.models import AllocationEvent, Container, Gpu, UsageSample

HOLD = ("--hold", "600")


async def past_the_shim(process: Process, size: str) -> None:
    process.takes_past_the_shim(int(size))
    process.say("holds")
    await process.terminated.wait()


async def got_past(host: InProcess) -> Container:
    container = await host.launch(past_the_shim, str(GIB), gpu_memory=2 * GIB)
    await host.says(container, "holds")
    return container


def _gpu(host: InProcess) -> str:
    return next(iter(host.up.gpus.cards))


async def test_memory_of_a_program_outside_is_foreign_and_comes_off_the_capacity(host: InProcess) -> None:
    outside, gpus = host.outside(GIB), lambda: host.up.broker.state.gpus[_gpu(host)].capacity
    await host.eventually(lambda: gpus() == 4 * GIB - CONTEXT)
    waiter = await host.launch("workload", "--bytes", "4GiB", gpu_memory=5 * GIB)
    await host.until(waiter, "suspended")
    host.ends_outside(outside)
    await host.until(waiter, "exited")
    await host.eventually(lambda: gpus() == 5 * GIB)


async def test_who_waits_for_foreign_memory_waits_on_for_a_new_scheduler_that_has_not_seen_it_yet(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be given what is not there, and its program would find the card full."""
    outside = host.outside(GIB)
    await host.eventually(lambda: host.up.broker.state.gpus[_gpu(host)].capacity == 4 * GIB - CONTEXT)
    waiter = await host.launch("workload", "--bytes", "4GiB", gpu_memory=5 * GIB)
    await host.until(waiter, "suspended")
    (session,) = host.up.broker.sessions.values()
    had, read = session.leases[_gpu(host)].granted, host.cards.read
    await host.stop()

    async def slowly() -> dict[str, Reading]:
        """As on a card that tells late who is on it: what waits has time to ask, where it may."""
        monkeypatch.undo()
        await asyncio.sleep(1)
        return await read()

    monkeypatch.setattr(host.cards, "read", slowly)
    await host.start()
    assert host.up.broker.state.gpus[_gpu(host)].capacity == 4 * GIB - CONTEXT
    (session,) = host.up.broker.sessions.values()
    await host.eventually(lambda: session.asked)
    assert session.leases[_gpu(host)].granted == had
    host.ends_outside(outside)
    assert (await host.until(waiter, "exited")).exit_code == 0


async def test_process_that_got_past_the_shim_is_shown_as_uncapped(host: InProcess) -> None:
    container = await got_past(host)
    for _ in range(2):
        await host.settle()
    claim, gpu = await host.claim(container), await query(Gpu.objects.get)
    shown = [(each["used"], each["real"], each["uncapped"]) for each in claim.processes]
    assert shown == [(0, GIB + CONTEXT, True)]
    assert (claim.unexplained, gpu.foreign) == (GIB + CONTEXT, GIB + CONTEXT)


async def test_process_that_was_quicker_than_the_word_of_its_containers_start_is_found(host: InProcess) -> None:
    container = await host.launch(past_the_shim, str(GIB), gpu_memory=2 * GIB)
    live = host.up.broker.live_containers[str(container.pk)]
    engine_id, live.engine_id = live.engine_id, ""  # as it is until the engine's answer is back
    await host.says(container, "holds")
    for _ in range(2):
        await host.up.measure.once()
    live.engine_id = engine_id
    for _ in range(3):
        await host.up.measure.once()
    await host.up.store.flush()
    assert [event.bytes for event in await host.events(container, "bypass")] == [GIB + CONTEXT]


async def test_container_that_got_past_the_shim_is_reported_once_and_ended_if_configured(
    host: InProcess, settings: Settings
) -> None:
    container = await got_past(host)
    (events,) = await host.eventually(lambda: host.events(container, "bypass"))
    assert events.bytes == GIB + CONTEXT
    assert (await host.get(container)).state == "running"
    await host.stop()
    await host.start()  # which sees the same, and is not the first
    settings.GPUSHARE_BYPASS_ACTION = "kill"
    ended = await host.until(container, "killed")
    assert "without the shim" in ended.reason
    assert len(await host.events(container, "bypass")) == 1


async def test_what_the_card_shows_beyond_the_charge_is_charged_as_overhead_and_given_back(host: InProcess) -> None:
    container = await host.launch("workload", "--bytes", "256MiB", *HOLD, gpu_memory=GIB)
    await host.says(container, "holding")
    live = host.up.broker.live_containers[str(container.pk)]
    gpu = _gpu(host)
    charged = live.used(gpu)
    session = next(iter(live.sessions.values()))
    # The simulated driver takes nothing by itself: the charge is made too small instead, by what a module would be.
    session.page[0].release(32 * MIB)
    assert live.used(gpu) == charged - 32 * MIB
    await host.eventually(lambda: live.used(gpu) == charged)
    assert session.leases[gpu].measured == 32 * MIB
    assert session.leases[gpu].overhead == CONTEXT + 32 * MIB
    # And now the card holds less than was charged.
    assert session.leases[gpu].charge(16 * MIB) == 0
    await host.eventually(lambda: live.used(gpu) == charged)
    assert session.leases[gpu].measured == 32 * MIB


async def test_a_card_that_is_full_inside_a_lease_is_written_down(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leased(process: Process) -> None:
        await process.alloc(64 * MIB)
        process.say("leased")
        await process.asked.get()
        with pytest.raises(OutOfMemory):
            await process.alloc(3 * GIB)
        process.say("goes on")

    container = await host.launch(leased, gpu_memory=4 * GIB)
    await host.says(container, "leased")
    charged = host.up.broker.live_containers[str(container.pk)].used(_gpu(host))
    # The scheduler must not see what takes the card, or it would take the headroom back and let the program wait.
    monkeypatch.setattr(host.up.measure, "once", partial(asyncio.sleep, 0))
    host.outside(3 * GIB)
    host.process(container).asked.put_nowait("more")
    await host.until(container, "exited")
    assert "goes on" in host.log(container)
    await host.up.store.flush()
    event = await query(lambda: AllocationEvent.objects.get(container=container, kind="card_full"))
    assert (event.bytes, event.used_after) == (3 * GIB, charged)
    assert "had no memory for a granted lease" in event.detail


async def test_what_is_not_charged_is_looked_at_again_soon(host: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await host.launch("workload", "--bytes", "256MiB", *HOLD, gpu_memory=GIB)
    await host.says(container, "holding")
    live = host.up.broker.live_containers[str(container.pk)]
    charged = live.used(_gpu(host))
    monkeypatch.setattr(measure, "PERIOD", 3600.0)  # after the next look there would be no other
    next(iter(live.sessions.values())).page[0].release(32 * MIB)
    await host.eventually(lambda: live.used(_gpu(host)) == charged)


async def test_what_a_process_gave_back_in_its_page_alone_is_nobody_elses(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "TIMES", 1000)  # it is not charged either
    gpu = _gpu(host)
    capacity = host.up.gpus.cards[gpu].capacity(0)
    cheat = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(cheat, "holding")
    live = host.up.broker.live_containers[str(cheat.pk)]
    session = next(iter(live.sessions.values()))
    session.page[0].release(2 * GIB)
    broker = host.up.broker  # which takes it back for whoever asks next
    broker.tell(Returned(broker.now(), gpu, {session.id: session.leases[gpu].take_back()}))
    await host.eventually(lambda: host.up.broker.state.gpus[gpu].capacity == capacity - 2 * GIB)
    waiter = await host.launch("workload", "--bytes", "2GiB", *HOLD, gpu_memory=3 * GIB)
    await host.until(waiter, "suspended")
    await host.command("kill", cheat)
    await host.says(waiter, "holding")
    await host.eventually(lambda: host.up.broker.state.gpus[gpu].capacity == capacity)


async def test_overhead_without_headroom_raises_the_lease_and_what_passes_the_quota_is_taken_back(
    host: InProcess,
) -> None:
    container = await host.launch("workload", "--bytes", "900MiB", *HOLD, gpu_memory=GIB)
    await host.says(container, "holding")
    live = host.up.broker.live_containers[str(container.pk)]
    gpu = _gpu(host)
    session = next(iter(live.sessions.values()))
    before = live.used(gpu)
    host.up.broker.overhead(session, gpu, 500 * MIB)
    assert live.used(gpu) == before + 500 * MIB
    assert host.up.broker.state.containers[live.id].leased[gpu] == live.granted(gpu)
    host.up.broker.overhead(session, gpu, -500 * MIB)
    host.up.broker.collect_excess(live)
    assert live.used(gpu) == before
    assert live.granted(gpu) <= GIB
    assert host.up.broker.state.containers[live.id].leased[gpu] == live.granted(gpu)


async def test_samples_are_written_each_second_for_containers_and_cards(host: InProcess) -> None:
    container = await host.launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=2 * GIB)
    await host.says(container, "holding")

    await asyncio.sleep(3)
    await host.settle()
    found = await query(lambda: list(UsageSample.objects.filter(container=container, used__gte=GIB)))
    assert len(found) >= 2
    assert found[-1].used == GIB + CONTEXT
    whole = await query(lambda: UsageSample.objects.filter(container=None).last())
    assert whole is not None
    assert whole.used == GIB + CONTEXT


async def test_who_computes_is_reported_and_who_only_holds_is_not(host: InProcess) -> None:
    words = ("workload", "--bytes", "64MiB", "--chunks", "1")
    computing = await host.launch(*words, "--compute", "600", gpu_memory=GIB)
    holding = await host.launch(*words, *HOLD, gpu_memory=GIB)
    await asyncio.sleep(3)
    await host.settle()
    assert await query(UsageSample.objects.filter(container=computing, utilisation=100).exists)
    assert not await query(UsageSample.objects.filter(container=holding, utilisation__gt=0).exists)


async def test_what_happens_inside_a_lease_is_in_the_record(host: InProcess) -> None:
    async def one_after_the_other(process: Process) -> None:
        for size in (256 * MIB, 512 * MIB):
            await process.alloc(size)
            await process.asked.get()
            await process.free(size)

    container = await host.launch(one_after_the_other, gpu_memory=GIB)
    for size in (256 * MIB, 512 * MIB):
        await asyncio.sleep(2)
        await host.settle()
        assert size + CONTEXT in [event.used_after for event in await host.events(container, "accepted")]
        host.process(container).asked.put_nowait("next")
    await host.until(container, "exited")
    await host.returned(container)
    used = [event.used_after for event in await host.events(container, "accepted", "freed")]
    assert used[-1] == 0
