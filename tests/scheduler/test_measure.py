"""What the card shows against what was charged: overhead, foreign memory, processes past the shim, contexts."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import pytest
from pytest_django import Settings

from scheduler.core.events import Returned
from scheduler.gpus import Gpus, Reading
from scheduler.monitors import measure
from tests.support.card import ROOT
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import BUILD, GIB, MIB, Host, query
from web.models import AllocationEvent, Gpu, UsageSample

CONTEXT = 66 * MIB

# Takes memory of the card by hand, past the shim: what a module or a library does inside the driver.
RAW = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1], mode=ctypes.DEFAULT_MODE | 8)  # RTLD_DEEPBIND: not through the preloaded library
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[2]))) == 0
print("holds", flush=True)
if sys.argv[3:]:
    time.sleep(float(sys.argv[3]))
    assert cuda.cuMemFree_v2(pointer) == 0
    print("freed", flush=True)
time.sleep(600)
"""


def _gpu(host: Host) -> str:
    return next(iter(host.up.gpus.cards))


async def test_context_is_measured_at_start(host: Host) -> None:
    assert host.up.gpus.contexts == {_gpu(host): CONTEXT}
    assert (await query(Gpu.objects.get)).context == CONTEXT


async def test_context_on_a_full_card_is_what_was_measured_before_and_is_measured_again(
    host: Host, monkeypatch
) -> None:
    monkeypatch.setattr("scheduler.monitors.contexts.FIRST_PAUSE", 0.05)
    gpu, raw = _gpu(host), (sys.executable, "-c", RAW, str(BUILD / "sim" / "libcuda.so.1"))
    await host.stop()
    full = await asyncio.create_subprocess_exec(
        *raw, str(5 * GIB - CONTEXT - 2 * MIB), stdout=asyncio.subprocess.PIPE
    )  # no room for another context
    assert full.stdout is not None
    assert await full.stdout.readline() == b"holds\n"
    await host.start()
    assert host.up.gpus.unmeasured == {gpu}
    assert host.up.broker.contexts == {gpu: CONTEXT}
    assert (await query(Gpu.objects.get)).context == CONTEXT
    # As if nobody had measured it before: then it is a guess, until there is room.
    host.up.gpus.contexts[gpu] = 600 * MIB
    full.kill()
    await full.communicate()
    await eventually(lambda: host.up.broker.contexts == {gpu: CONTEXT})
    assert not host.up.gpus.unmeasured


async def test_memory_of_a_program_outside_is_foreign_and_comes_off_the_capacity(host: Host) -> None:
    outside = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RAW, str(BUILD / "sim" / "libcuda.so.1"), str(GIB), stdout=asyncio.subprocess.PIPE
    )
    assert outside.stdout is not None
    assert await outside.stdout.readline() == b"holds\n"
    held = GIB + CONTEXT
    state = host.up.broker
    await eventually(lambda: state.state.gpus[_gpu(host)].capacity == 5 * GIB - held)
    waiter = await host.launch("workload", "--bytes", "4GiB", "--check", "1MiB", gpu_memory=5 * GIB)
    await host.until(waiter, "suspended")
    outside.kill()
    await outside.communicate()
    await host.until(waiter, "exited")
    await eventually(lambda: state.state.gpus[_gpu(host)].capacity == 5 * GIB)


async def test_who_waits_for_foreign_memory_waits_on_for_a_new_scheduler_that_has_not_seen_it_yet(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be given what is not there, and its program be told that the card is full."""
    outside = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RAW, str(BUILD / "sim" / "libcuda.so.1"), str(GIB), stdout=asyncio.subprocess.PIPE
    )
    assert outside.stdout is not None
    assert await outside.stdout.readline() == b"holds\n"
    broker = host.up.broker
    await eventually(lambda: broker.state.gpus[_gpu(host)].capacity == 4 * GIB - CONTEXT)
    waiter = await host.launch("workload", "--bytes", "4GiB", "--check", "1MiB", gpu_memory=5 * GIB)
    await host.until(waiter, "suspended")
    (session,) = broker.sessions.values()
    had, read = session.leases[_gpu(host)].granted, Gpus.read
    await host.stop()

    async def when_it_has_asked_again(gpus: Gpus) -> dict[str, Reading]:
        """As on a card that tells slowly who is on it."""
        monkeypatch.setattr(Gpus, "read", read)
        (session,) = host.up.broker.sessions.values()
        lease = session.leases[_gpu(host)]
        await eventually(lambda: session.asked or lease.granted > had or not host.up.server._listeners)
        return await read(gpus)

    monkeypatch.setattr(Gpus, "read", when_it_has_asked_again)
    await host.start()
    # Not more; less where a worker of the last scheduler's was still just ending with its context.
    assert host.up.broker.state.gpus[_gpu(host)].capacity <= 4 * GIB - CONTEXT
    (session,) = host.up.broker.sessions.values()
    await eventually(lambda: session.asked or session.leases[_gpu(host)].granted > had)
    assert session.leases[_gpu(host)].granted == had
    outside.kill()
    await outside.communicate()
    assert (await host.until(waiter, "exited")).exit_code == 0


async def test_process_that_got_past_the_shim_is_shown_as_uncapped(host: Host) -> None:
    words = ["env", "-u", "LD_PRELOAD", sys.executable, "-c", RAW, str(BUILD / "sim" / "libcuda.so.1"), str(GIB)]
    container = await host.launch(*words, gpu_memory=2 * GIB)
    await host.says(container, "holds")

    async def told() -> list[dict[str, object]]:
        return (await host.claim(container)).processes

    for _ in range(600):
        processes = await told()
        if processes and (await query(Gpu.objects.get)).foreign > CONTEXT:
            break
        await asyncio.sleep(0.1)
    assert [(each["used"], each["real"], each["uncapped"]) for each in processes] == [(0, GIB + CONTEXT, True)]
    assert (await host.claim(container)).unexplained == GIB + CONTEXT
    assert (await query(Gpu.objects.get)).foreign == GIB + CONTEXT


async def test_process_that_was_quicker_than_the_word_of_its_containers_start_is_found(host: Host) -> None:
    words = ["env", "-u", "LD_PRELOAD", sys.executable, "-c", RAW, str(BUILD / "sim" / "libcuda.so.1"), str(GIB)]
    container = await host.launch(*words, gpu_memory=2 * GIB)
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


async def test_container_that_got_past_the_shim_is_told_of_once_and_ended_if_configured(
    host: Host, settings: Settings
) -> None:
    words = ["env", "-u", "LD_PRELOAD", sys.executable, "-c", RAW, str(BUILD / "sim" / "libcuda.so.1"), str(GIB)]
    container = await host.launch(*words, gpu_memory=2 * GIB)
    await host.says(container, "holds")
    for _ in range(1200):
        if told := await host.events(container, "bypass"):
            break
        await asyncio.sleep(0.05)
    assert [event.bytes for event in told] == [GIB + CONTEXT]
    assert (await host.get(container)).state == "running"
    await host.stop()
    await host.start()  # which sees the same, and is not the first
    settings.GPUSHARE_BYPASS_ACTION = "kill"
    ended = await host.until(container, "killed")
    assert "past its quota's shim" in ended.reason
    assert len(await host.events(container, "bypass")) == 1


async def test_what_the_card_shows_beyond_the_charge_is_charged_as_overhead_and_given_back(host: Host) -> None:
    script = "workload --bytes 256MiB --check 1MiB --hold 600"
    container = await host.launch("sh", "-c", script.replace("workload", str(host.workload)), gpu_memory=GIB)
    await host.says(container, "holding")
    live = host.up.broker.live_containers[str(container.pk)]
    gpu = _gpu(host)
    charged = live.used(gpu)
    session = next(iter(live.sessions.values()))
    # The simulated driver takes nothing by itself: the charge is made too small instead, by what a module would be.
    session.page[0].release(32 * MIB)
    assert live.used(gpu) == charged - 32 * MIB
    await eventually(lambda: live.used(gpu) == charged)
    assert session.leases[gpu].measured == 32 * MIB
    assert session.leases[gpu].overhead == CONTEXT + 32 * MIB
    # And now the card holds less than was charged.
    assert session.leases[gpu].charge(16 * MIB) == 0
    await eventually(lambda: live.used(gpu) == charged)
    assert session.leases[gpu].measured == 32 * MIB


# Takes a lease, then waits for a file, then asks the card for what the lease allows.
LEASED = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.support.cuda import *
cuda = Cuda()
cuda.alloc(64 * MIB)
print("leased", flush=True)
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
try:
    cuda.alloc(3 * GIB)
except Failed as failed:
    print("failed with", failed.code, flush=True)
cuda.alloc(64 * MIB)
print("goes on", flush=True)
"""


async def test_a_card_that_is_full_inside_a_lease_is_written_down(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    container = await host.launch(sys.executable, "-c", LEASED, str(ROOT), str(go), gpu_memory=4 * GIB)
    await host.says(container, "leased")
    charged = host.up.broker.live_containers[str(container.pk)].used(_gpu(host))
    # The scheduler must not see what takes the card, or it would take the headroom back and let the program wait.
    monkeypatch.setattr(host.up.measure, "once", partial(asyncio.sleep, 0))
    outside = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RAW, str(BUILD / "sim" / "libcuda.so.1"), str(3 * GIB), stdout=asyncio.subprocess.PIPE
    )
    assert outside.stdout is not None
    assert await outside.stdout.readline() == b"holds\n"
    go.touch()
    await host.until(container, "exited")
    outside.kill()
    await outside.communicate()
    assert "failed with 2\ngoes on" in host.log(container)
    await host.up.store.flush()
    event = await query(lambda: AllocationEvent.objects.get(container=container, kind="card_full"))
    assert event.bytes == 3 * GIB
    assert event.used_after in (charged, charged + 64 * MIB)  # without what failed, perhaps with what came next
    assert "had no memory inside a lease" in event.detail


async def test_what_is_not_charged_is_looked_at_again_soon(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await host.launch("workload", "--bytes", "256MiB", "--check", "1MiB", "--hold", "600", gpu_memory=GIB)
    await host.says(container, "holding")
    live = host.up.broker.live_containers[str(container.pk)]
    charged = live.used(_gpu(host))
    monkeypatch.setattr(measure, "PERIOD", 3600.0)  # after the next look there would be no other
    next(iter(live.sessions.values())).page[0].release(32 * MIB)
    await eventually(lambda: live.used(_gpu(host)) == charged)


async def test_what_a_process_gave_back_in_its_page_alone_is_nobody_elses(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "TIMES", 1000)  # it is not charged either
    gpu, hold = _gpu(host), ("--check", "1MiB", "--hold", "600")
    capacity = host.up.gpus.cards[gpu].capacity(0)
    cheat = await host.launch("workload", "--bytes", "3GiB", *hold, gpu_memory=4 * GIB)
    await host.says(cheat, "holding")
    live = host.up.broker.live_containers[str(cheat.pk)]
    session = next(iter(live.sessions.values()))
    session.page[0].release(2 * GIB)
    broker = host.up.broker  # which takes it back for whoever asks next
    broker.tell(Returned(broker.now(), gpu, {session.id: session.leases[gpu].take_back()}))
    await eventually(lambda: host.up.broker.state.gpus[gpu].capacity == capacity - 2 * GIB)
    waiter = await host.launch("workload", "--bytes", "2GiB", *hold, gpu_memory=3 * GIB)
    await host.until(waiter, "suspended")
    await host.command("kill", cheat)
    await host.says(waiter, "holding")
    await eventually(lambda: host.up.broker.state.gpus[gpu].capacity == capacity)


async def test_overhead_without_headroom_raises_the_lease_and_what_passes_the_quota_is_taken_back(host: Host) -> None:
    container = await host.launch("workload", "--bytes", "900MiB", "--check", "1MiB", "--hold", "600", gpu_memory=GIB)
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


async def test_samples_are_written_each_second_for_containers_and_cards(host: Host) -> None:
    container = await host.launch("workload", "--bytes", "1GiB", "--check", "1MiB", "--hold", "600", gpu_memory=2 * GIB)
    await host.says(container, "holding")

    def samples() -> list[UsageSample]:
        return list(UsageSample.objects.filter(container=container, used__gte=GIB))

    async with asyncio.timeout(PATIENCE):
        while len(found := await query(samples)) < 2:  # noqa: ASYNC110 - rows of the database
            await asyncio.sleep(0.1)
    assert found[0].used == GIB + CONTEXT
    whole = await query(lambda: UsageSample.objects.filter(container=None).last())
    assert whole is not None
    assert whole.used == GIB + CONTEXT


async def test_who_computes_is_told_and_who_only_holds_is_not(host: Host) -> None:
    words = ("workload", "--bytes", "64MiB", "--chunks", "1")
    computing = await host.launch(*words, "--compute", "600", "--ahead", "500", gpu_memory=GIB)
    holding = await host.launch(*words, "--hold", "600", gpu_memory=GIB)
    await host.says(holding, "holding")

    def told() -> bool:
        return UsageSample.objects.filter(container=computing, utilisation=100).exists()

    async with asyncio.timeout(PATIENCE):
        while not await query(told):  # noqa: ASYNC110 - a row of the database
            await asyncio.sleep(0.05)
    assert not await query(UsageSample.objects.filter(container=holding, utilisation__gt=0).exists)


async def test_what_happens_inside_a_lease_is_in_the_record(host: Host) -> None:
    sizes = (256, 512)
    each = [f"{host.workload} --bytes {size}MiB --until {host.home / f'go-{size}'}" for size in sizes]
    container = await host.launch("sh", "-c", "; ".join(each), gpu_memory=GIB)
    for size in sizes:
        await eventually(lambda size=size: f"copied in {size} MiB" in host.log(container))
        async with asyncio.timeout(PATIENCE):
            while size * MIB + CONTEXT not in [event.used_after for event in await host.events(container, "accepted")]:
                await host.up.store.flush()
        (host.home / f"go-{size}").touch()
    await host.until(container, "exited")
    await host.returned(container)
    used = [event.used_after for event in await host.events(container, "accepted", "freed")]
    assert used[-1] == 0
    assert 256 * MIB + CONTEXT in used
    assert 512 * MIB + CONTEXT in used
