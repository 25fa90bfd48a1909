"""Graphs that allocate are charged when they first run, and until their memory is trimmed."""

import pytest

from tests.support import layouts
from tests.support.card import CONTEXT, MIB

OUT_OF_MEMORY = 2
MEM_ALLOC = 10


def add_allocation(cuda, graph, size, after=None):
    """(node, address)"""
    node, parameters = cuda(
        "cuGraphAddMemAllocNode", {"out": 0}, graph, {"out": after or 0}, int(after is not None),
        layouts.allocation_node(size),
    )[0::2]  # fmt: skip
    return node, layouts.node_address(parameters)


def instantiate(cuda, graph, name="cuGraphInstantiateWithFlags", *arguments, way="dlsym"):
    return cuda.new(name, graph, *(arguments or [0]), way=way)


def captured(cuda, size, free=True):
    """A graph made by capturing an allocation."""
    stream = cuda.new("cuStreamCreate", 1)
    cuda("cuStreamBeginCapture_v2", stream, 2)
    address = cuda.new("cuMemAllocAsync", size, stream)
    if free:
        cuda("cuMemFreeAsync", address, stream)
    return cuda("cuStreamEndCapture", stream, {"out": 0})[0]


def test_a_captured_allocation_is_charged_when_it_runs(cuda, charged):
    graph = captured(cuda, 40 * MIB)
    assert charged(cuda) == 0
    exec_ = instantiate(cuda, graph)
    cuda("cuGraphLaunch", exec_, 0)
    cuda("cuCtxSynchronize")
    assert charged(cuda) == 40 * MIB
    cuda("cuGraphLaunch", exec_, 0)
    assert charged(cuda) == 40 * MIB
    cuda("cuGraphExecDestroy", exec_)
    cuda("cuGraphDestroy", graph)
    cuda("cuDeviceGraphMemTrim", 0)
    assert charged(cuda) == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cuGraphInstantiate", [None, None, 0]),
        ("cuGraphInstantiate_v2", [None, None, 0]),
        ("cuGraphInstantiateWithFlags", [0]),
        ("cuGraphInstantiateWithParams", [{"bytes": bytes(32).hex()}]),
        ("cuGraphInstantiateWithParams_ptsz", [{"bytes": bytes(32).hex()}]),
    ],
)
@pytest.mark.parametrize("launch", ["cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload", "cuGraphUpload_ptsz"])
def test_every_way_to_instantiate_and_run(cuda, charged, name, arguments, launch):
    graph = cuda.new("cuGraphCreate", 0)
    node, address = add_allocation(cuda, graph, 6 * MIB)
    cuda("cuGraphAddMemFreeNode", {"out": 0}, graph, {"out": node}, 1, address)
    exec_ = instantiate(cuda, graph, name, *arguments)
    cuda(launch, exec_, 0)
    assert charged(cuda) == 6 * MIB
    cuda("cuDeviceGraphMemTrim", 0)
    assert charged(cuda) == 0


def test_a_node_of_the_newer_kind_and_a_graph_in_a_graph(cuda, charged):
    inner = captured(cuda, 4 * MIB)
    outer = cuda.new("cuGraphCreate", 0)
    node = cuda.new("cuGraphAddChildGraphNode", outer, None, 0, inner)
    parameters = layouts.any_node(MEM_ALLOC, layouts.allocation_node(8 * MIB))
    cuda.new("cuGraphAddNode_v2", outer, {"out": node}, None, 1, parameters)
    cuda("cuGraphLaunch", instantiate(cuda, outer), 0)
    assert charged(cuda) == 12 * MIB


def test_beyond_the_quota_it_does_not_run(grants_of, program, card):
    cuda = program(grants := grants_of(quota=CONTEXT + 64 * MIB))
    cuda.use()
    graph = captured(cuda, 80 * MIB)
    assert cuda.result("cuGraphInstantiateWithFlags", {"out": 0}, graph, 0) == OUT_OF_MEMORY
    assert grants.only_peer().used() == CONTEXT == card.used()


def test_memory_freed_inside_a_graph_counts_once(grants_of, program, card):
    cuda = program(grants := grants_of(quota=CONTEXT + 64 * MIB))
    cuda.use()
    stream = cuda.new("cuStreamCreate", 1)
    cuda("cuStreamBeginCapture_v2", stream, 2)
    for _ in range(5):
        cuda("cuMemFreeAsync", cuda.new("cuMemAllocAsync", 30 * MIB, stream), stream)
    exec_ = instantiate(cuda, cuda("cuStreamEndCapture", stream, {"out": 0})[0])
    cuda("cuGraphLaunch", exec_, 0)
    assert grants.only_peer().used() == card.used() == CONTEXT + 30 * MIB


def test_launching_a_graph_that_allocates_nothing_asks_nothing(cuda):
    graph = cuda.new("cuGraphCreate", 0)
    cuda.new("cuGraphAddEmptyNode", graph, None, 0)
    exec_ = instantiate(cuda, graph)
    before, after = cuda.run(f"""
import ctypes
lib.sim_all_calls.restype = ctypes.c_uint64
before = lib.sim_all_calls()
assert lib.cuGraphLaunch(ctypes.c_uint64({exec_}), None) == 0
answer = before, lib.sim_all_calls()
""")
    assert after - before == 1


def test_an_allocation_beside_a_capture_is_charged(cuda, charged):
    capturing = cuda.new("cuStreamCreate", 1)
    cuda("cuStreamBeginCapture_v2", capturing, 2)
    cuda.new("cuMemAllocAsync", MIB, cuda.new("cuStreamCreate", 1))
    assert charged(cuda) == 32 * MIB
    cuda("cuStreamEndCapture", capturing, {"out": 0})


@pytest.mark.parametrize("begin", ["cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"])
def test_the_counting_of_captures_ends_with_them(cuda, begin):
    stream = cuda.new("cuStreamCreate", 1)
    for _ in range(3):
        cuda(begin, stream, 2)
        cuda("cuStreamEndCapture", stream, {"out": 0})
    asked = cuda.run("""
import ctypes
out = ctypes.c_uint64()
lib.sim_calls.restype = ctypes.c_uint64
before = lib.sim_calls(b"cuStreamIsCapturing")
assert lib.cuMemAllocAsync(ctypes.byref(out), ctypes.c_size_t(1 << 20), None) == 0
answer = lib.sim_calls(b"cuStreamIsCapturing") - before
""")
    assert asked == 0
