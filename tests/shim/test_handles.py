"""A handle stands for another thing as soon as the driver has destroyed the first, before the caller hears of it."""

import pytest

from tests.support import layouts
from tests.support.card import CONTEXT, MIB

# `after(call, do)`: when `call` has had its effect, and before it returns, `do` is done, as by another thread. `again`
# makes things until one has the handle that was just destroyed, which the simulated driver gives out again.
AFTER = """
u64, size, null = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p(None)
kept, failures, done = [], [], []
def after(call, do):
    @ctypes.CFUNCTYPE(None)
    def callback():
        try:
            do()
        except BaseException as error:
            failures.append(error)
        done.append(call)
    kept.append(callback)
    lib.sim_after(call, callback)
def was_done():
    assert done
    if failures:
        raise failures[0]
def must(result):
    assert result == 0, result
def again(make, handle):
    for _ in range(1000):
        made = make()
        if made.value == handle.value:
            return made
    raise AssertionError("no handle was given out again")
"""


def test_a_graph_under_the_handle_of_a_destroyed_one_is_charged_when_it_runs(cuda, charged):
    cuda.run(
        AFTER
        + """
graph, node = u64(), u64()
must(lib.cuGraphCreate(ctypes.byref(graph), 0))
must(lib.cuGraphAddMemAllocNode(ctypes.byref(node), graph, null, size(0), bytes.fromhex("PARAMETERS")))
def make():
    execution = u64()
    must(lib.cuGraphInstantiateWithFlags(ctypes.byref(execution), graph, u64(0)))
    return execution
import builtins
first = make()
def other():
    builtins.second = again(make, first)
after(b"cuGraphExecDestroy", other)
must(lib.cuGraphExecDestroy(first))
was_done()
must(lib.cuGraphLaunch(builtins.second, null))
answer = True
""".replace("PARAMETERS", layouts.allocation_node(400 * MIB)["bytes"])
    )
    assert charged(cuda) == 400 * MIB


def test_a_pool_under_the_handle_of_a_destroyed_one_is_charged(cuda, charged):
    cuda.run(
        AFTER
        + """
def make():
    pool = u64()
    must(lib.cuMemPoolCreate(ctypes.byref(pool), bytes.fromhex("PROPERTIES")))
    return pool
import builtins
first = make()
def other():
    second = again(make, first)
    must(lib.cuMemAllocFromPoolAsync(ctypes.byref(u64()), size(200 << 20), second, null))
after(b"cuMemPoolDestroy", other)
must(lib.cuMemPoolDestroy(first))
was_done()
answer = True
""".replace("PROPERTIES", layouts.pool()["bytes"])
    )
    assert charged(cuda) == 224 * MIB


def test_a_pool_that_the_driver_keeps_is_charged_as_before(cuda, charged):
    cuda.new("cuMemAllocAsync", 40 * MIB, 0)
    assert cuda.result("cuMemPoolDestroy", cuda.new("cuDeviceGetDefaultMemPool", 0)) != 0
    cuda.new("cuMemAllocAsync", 40 * MIB, 0)
    assert charged(cuda) == 128 * MIB


def test_the_primary_context_made_anew_while_it_is_released(cuda, charged):
    """The other thread comes when the driver has said that it has ended."""
    cuda.run(
        AFTER
        + """
context, out = u64(), u64()
def other():
    must(lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(lib.cuCtxSetCurrent(context))
    must(lib.cuMemAlloc_v2(ctypes.byref(out), size(400 << 20)))
thread = threading.Thread(target=other)
def begin():
    thread.start()
    thread.join(1)  # it may have to wait for this one
after(b"cuDevicePrimaryCtxGetState", begin)
must(lib.cuDevicePrimaryCtxRelease_v2(0))
thread.join()
was_done()
answer = True
"""
    )
    assert charged(cuda) == 400 * MIB


@pytest.mark.parametrize("destroy", ["cuCtxDestroy_v2", "cuCtxDetach"])
def test_a_context_at_the_address_of_a_destroyed_one_keeps_its_memory(cuda, charged, destroy):
    assert not charged(cuda)
    made = cuda.run(
        AFTER
        + f"""
out, made = u64(), []
lib.sim_reuse_contexts()
def make():
    made.append(u64())
    must(lib.cuCtxCreate_v2(ctypes.byref(made[-1]), 0, 0))
    return made[-1]
first = make()
must(lib.cuMemAlloc_v2(ctypes.byref(u64()), size(20 << 20)))
def other():
    must(lib.cuCtxSetCurrent(again(make, first)))
    must(lib.cuMemAlloc_v2(ctypes.byref(out), size(100 << 20)))
after(b"{destroy}", other)
must(lib.{destroy}(first))
was_done()
answer = len(made)
"""
    )
    assert charged(cuda) == 100 * MIB + (made - 1) * CONTEXT


def test_an_array_at_the_address_of_a_destroyed_one_keeps_what_is_mapped_into_it(cuda, charged):
    cuda.run(
        AFTER
        + """
def make():
    array = u64()
    must(lib.cuArray3DCreate_v2(ctypes.byref(array), bytes.fromhex("ARRAY")))
    return array
def map_into(array):
    handle = u64()
    must(lib.cuMemCreate(ctypes.byref(handle), size(4 << 20), bytes.fromhex("PROPERTIES"), u64(0)))
    tile = bytearray.fromhex("TILE")
    tile[8:16] = array.value.to_bytes(8, "little")
    at = tile.index((0xABCDEF).to_bytes(8, "little"))
    tile[at : at + 8] = handle.value.to_bytes(8, "little")
    must(lib.cuMemMapArrayAsync(bytes(tile), 1, null))
    must(lib.cuMemRelease(handle))
first = make()
map_into(first)
def other():
    map_into(again(make, first))
after(b"cuArrayDestroy", other)
must(lib.cuArrayDestroy(first))
was_done()
answer = True
""".replace("ARRAY", layouts.array3d(512, 512, 0, 1, flags=layouts.DEFERRED)["bytes"])
        .replace("PROPERTIES", layouts.allocation()["bytes"])
        .replace("TILE", layouts.tile(0, 0xABCDEF)["bytes"])
    )
    assert charged(cuda) == 4 * MIB
