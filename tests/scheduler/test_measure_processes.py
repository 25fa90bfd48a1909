"""NVML's own words, with real programs on the simulated card: all else that is measured is in test_measure.py."""

import asyncio
import sys

from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, MIB, Host, host, query
from web.models import Gpu, UsageSample

__all__ = ["host"]


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


async def test_who_computes_is_reported_and_who_only_holds_is_not(host: Host) -> None:
    words = ("workload", "--bytes", "64MiB", "--chunks", "1")
    computing = await host.launch(*words, "--compute", "600", "--ahead", "500", gpu_memory=GIB)
    holding = await host.launch(*words, "--hold", "600", gpu_memory=GIB)
    await host.says(holding, "holding")

    def reported() -> bool:
        return UsageSample.objects.filter(container=computing, utilisation=100).exists()

    await eventually(lambda: query(reported))
    assert not await query(UsageSample.objects.filter(container=holding, utilisation__gt=0).exists)
