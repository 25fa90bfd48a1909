"""Several GPUs: memory is charged where it lies, whichever context is current."""

import pytest

from tests.support import layouts
from tests.support.card import CONTEXT, MIB

NOT_PERMITTED = 800


@pytest.fixture
def card(two_gpus):
    return two_gpus


def used(grants):
    return [grants.only_peer().used(slot) for slot in range(len(grants.uuids))]


def uuids(card):
    return [gpu["uuid"] for gpu in card.gpus()]


def both(cuda):
    """Both primary contexts; the first is current."""
    cuda("cuInit", 0)
    contexts = [cuda.new("cuDevicePrimaryCtxRetain", device) for device in (0, 1)]
    cuda("cuCtxSetCurrent", contexts[0])
    return contexts


def test_each_allocation_is_charged_to_its_gpu(grants, program):
    cuda = program(grants)
    contexts = both(cuda)
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    cuda("cuCtxSetCurrent", contexts[1])
    second = cuda.new("cuMemAlloc_v2", 6 * MIB)
    assert used(grants) == [CONTEXT + 2 * MIB, CONTEXT + 6 * MIB]
    cuda("cuCtxSetCurrent", contexts[0])
    cuda("cuMemFree_v2", second)  # while the other device is current
    assert used(grants) == [CONTEXT + 2 * MIB, CONTEXT]


def test_the_sizes_that_are_reported_are_each_gpus_own(grants, program):
    cuda = program(grants)
    contexts = both(cuda)
    cuda.new("cuMemAlloc_v2", 100 * MIB)
    assert cuda("cuMemGetInfo_v2", {"out": 0}, {"out": 0})[0] == 1024 * MIB - CONTEXT - 100 * MIB
    cuda("cuCtxSetCurrent", contexts[1])
    assert cuda("cuMemGetInfo_v2", {"out": 0}, {"out": 0})[0] == 1024 * MIB - CONTEXT


def test_virtual_memory_is_charged_by_its_location(grants, program):
    cuda = program(grants)
    both(cuda)
    handle = cuda.new("cuMemCreate", 4 * MIB, layouts.allocation(1), 0)
    assert used(grants) == [CONTEXT, CONTEXT + 4 * MIB]
    cuda("cuMemRelease", handle)
    assert used(grants) == [CONTEXT, CONTEXT]


def test_a_streams_device_decides_and_not_the_current_context(grants, program):
    cuda = program(grants)
    contexts = both(cuda)
    cuda("cuCtxSetCurrent", contexts[1])
    stream = cuda.new("cuStreamCreate", 1)
    cuda("cuCtxSetCurrent", contexts[0])
    for _ in range(2):
        cuda.new("cuMemAllocAsync", MIB, stream)
    assert used(grants) == [CONTEXT, CONTEXT + 32 * MIB]
    cuda.new("cuMemAllocAsync", MIB, 0)
    assert used(grants) == [CONTEXT + 32 * MIB, CONTEXT + 32 * MIB]
    cuda("cuStreamDestroy_v2", stream)
    again = cuda.new("cuStreamCreate", 1)  # perhaps under the same handle
    cuda.new("cuMemAllocAsync", 40 * MIB, again)
    assert used(grants)[1] == CONTEXT + 32 * MIB


def test_who_waits_for_a_pool_that_is_destroyed_is_charged_where_it_is_served(grants, program, card):
    """A pool that is made meanwhile, on the other GPU, has its handle, and may have its place in the shim."""
    cuda = program(grants)
    both(cuda)
    pool = cuda.new("cuMemPoolCreate", layouts.pool(0))
    grants.hold()
    cuda.begin_new("cuMemAllocFromPoolAsync", MIB, pool, 0)
    question = grants.next_open()
    cuda("cuMemPoolDestroy", pool)
    assert cuda.new("cuMemPoolCreate", layouts.pool(1)) == pool
    grants.answer(question)
    grants.answer(grants.next_open())
    assert cuda.ended() == 0
    assert used(grants) == [CONTEXT, CONTEXT + 32 * MIB] == [gpu["held"][cuda.pid] for gpu in card.gpus()]


def test_a_pool_of_another_device(grants, program):
    cuda = program(grants)
    both(cuda)
    pool = cuda.new("cuDeviceGetDefaultMemPool", 1)
    cuda.new("cuMemAllocFromPoolAsync", MIB, pool, 0)
    assert used(grants) == [CONTEXT, CONTEXT + 32 * MIB]


@pytest.mark.parametrize("way", ["index", "uuid"])
def test_cuda_visible_devices(grants, program, card, way):
    visible = "1" if way == "index" else uuids(card)[1]
    cuda = program(grants, CUDA_VISIBLE_DEVICES=visible)
    cuda.use(0)
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    assert used(grants) == [0, CONTEXT + 2 * MIB]


def test_a_gpu_that_is_not_the_containers(grants_of, program):
    grants = grants_of(gpus=[1])
    cuda = program(grants)
    cuda("cuInit", 0)
    assert cuda.result("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == NOT_PERMITTED
    assert cuda("cuDeviceTotalMem_v2", {"out": 0}, 0) == [0]  # the runtime library asks each GPU that is seen
    assert cuda("cuDeviceTotalMem", {"out": 0}, 0) == [0]
    assert cuda.result("cuMemCreate", {"out": 0}, 2 * MIB, layouts.allocation(0), 0) == NOT_PERMITTED
    assert cuda.result("cuMemCreate", {"out": 0}, 2 * MIB, layouts.allocation(77), 0) != 0
    cuda.use(1)
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    assert used(grants) == [CONTEXT + 2 * MIB]
    assert len(cuda.end().splitlines()) == 1


def test_a_thread_without_a_context_never_hits_a_wrong_device(grants, program):
    cuda = program(grants)
    both(cuda)
    assert cuda.run("""
out = ctypes.c_uint64()
results = []
def alone():
    results.append(lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(1 << 20)))
    results.append(lib.cuMemGetInfo_v2(ctypes.byref(out), ctypes.byref(out)))
thread = threading.Thread(target=alone)
thread.start(); thread.join()
answer = results
""") == [201, 201]  # fmt: skip
    assert used(grants) == [CONTEXT, CONTEXT]
