"""Whichever way a program takes memory: what it is charged is what the card shows, and it goes back to zero."""

import sys
import textwrap

import pytest

from tests.support.card import ROOT
from tests.support.eventually import eventually
from tests.support.host import GIB, MIB, Host, host

__all__ = ["host"]


START = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support.cuda import *
from tests.support import layouts
def raw(layout):
    return bytes.fromhex(layout["bytes"])
cuda = Cuda()
"""
HOLD = """
import os, signal
print("holding", flush=True)
signal.pause()
"""

WAYS = {
    "a context alone": "",
    "big blocks": "for _ in range(4): cuda.alloc(100 * MIB)",
    "many small ones": "for _ in range(20_000): cuda.alloc(3000)",
    "managed": 'cuda("cuMemAllocManaged", byref(c_uint64()), c_size_t(50 * MIB), 1)',
    "pitched": """
        pitch = c_size_t()
        cuda("cuMemAllocPitch_v2", byref(c_uint64()), byref(pitch), c_size_t(1000), c_size_t(50_000), 4)
    """,
    "a pool": "for _ in range(10): cuda.alloc_async(7 * MIB)",
    "a pool that keeps what was freed": """
        pool, keep = c_void_p(), c_uint64((1 << 64) - 1)
        cuda("cuDeviceGetDefaultMemPool", byref(pool), 0)
        cuda("cuMemPoolSetAttribute", pool, 4, byref(keep))
        for address in [cuda.alloc_async(30 * MIB) for _ in range(5)]:
            cuda("cuMemFreeAsync", c_uint64(address), None)
        cuda("cuCtxSynchronize")
    """,
    "virtual memory": """
        for _ in range(10):
            cuda("cuMemCreate", byref(c_uint64()), c_size_t(10 * MIB), raw(layouts.allocation()), c_uint64(0))
    """,
    "an array": 'cuda("cuArray3DCreate_v2", byref(c_void_p()), raw(layouts.array3d(1024, 1024, 16, 4)))',
    "a graph": """
        graph, node, execution = c_void_p(), c_void_p(), c_void_p()
        cuda("cuGraphCreate", byref(graph), 0)
        params = create_string_buffer(raw(layouts.allocation_node(90 * MIB)))
        cuda("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), params)
        cuda("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
        cuda("cuGraphLaunch", execution, None)
    """,
    "a second context": 'cuda("cuCtxCreate_v2", byref(c_void_p()), 0, 0); cuda.alloc(10 * MIB)',
    "a bigger device heap": 'cuda("cuCtxSetLimit", 2, c_size_t(60 * MIB))',
    "a module's variables": """
        text = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.global .align 8 .b8 table[20971520];\\n"
        cuda("cuModuleLoadData", byref(c_void_p()), text)
    """,
    "the old 32-bit calls": 'cuda("cuMemAlloc", byref(c_uint()), c_uint(70 * MIB))',
}


@pytest.mark.parametrize("way", WAYS)
async def test_charged_is_what_the_card_shows(host: Host, way: str) -> None:
    code = START + textwrap.dedent(WAYS[way]) + HOLD
    container = await host.launch(sys.executable, "-c", code, gpu_memory=2 * GIB)
    await eventually(lambda: "holding" in host.log(container) or "Error" in host.log(container))
    assert "holding" in host.log(container), host.log(container)

    differences = []
    for _ in range(4):  # what no call reserves is found at the second or third look
        await host.up.measure.once()
        host.up.report.publish()
        await host.up.store.flush()
        claim = await host.claim(container)
        (process,) = claim.processes
        differences.append(process["real"] - claim.used)

    print(f"{way:35} charged {claim.used / MIB:8.1f} MiB, real {process['real'] / MIB:8.1f} MiB")
    assert abs(differences[-1]) <= max(32 * MIB, 0.02 * process["real"]), differences

    await host.command("kill", container)
    ended = await host.returned(container)
    assert (ended.used, ended.granted) == (0, 0)


async def test_what_a_pool_gave_back_can_be_had_by_a_plain_allocation(host: Host) -> None:
    code = """
        addresses = [cuda.alloc_async(30 * MIB) for _ in range(5)]   # 160 MiB reserved
        for address in addresses:
            cuda("cuMemFreeAsync", c_uint64(address), None)
        cuda("cuCtxSynchronize")
        cuda.alloc(200 * MIB)
    """
    container = await host.launch(sys.executable, "-c", START + textwrap.dedent(code) + HOLD, gpu_memory=300 * MIB)
    await eventually(lambda: "holding" in host.log(container) or "Failed" in host.log(container))
    assert "holding" in host.log(container), host.log(container)
    await host.command("kill", container)
    assert (await host.returned(container)).used == 0
