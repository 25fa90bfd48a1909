"""What waited is charged to the pool that it comes from: the program may have chosen another one meanwhile."""

import pytest

from tests.shim.test_pool_growth import fragment
from tests.support import layouts
from tests.support.card import CONTEXT, MIB

PIECE = 32 * MIB  # what a pool grows by


@pytest.mark.parametrize("lives", [False, True], ids=["empty", "in use"])
@pytest.mark.parametrize("change", ["another is chosen", "it is destroyed"])
def test_what_waits_is_charged_to_the_pool_that_is_current_when_it_is_served(grants_of, program, card, change, lives):
    """Of a quota that has no byte to spare."""
    cuda = program(grants := grants_of(quota=CONTEXT + (4 + lives) * PIECE))
    cuda.use()
    pool, another = (cuda.new("cuMemPoolCreate", layouts.pool()) for _ in range(2))
    cuda("cuDeviceSetMemPool", 0, pool)
    if lives:
        cuda.new("cuMemAllocAsync", MIB, 0)
    grants.hold()
    cuda.begin_new("cuMemAllocAsync", 100 * MIB, 0)
    question = grants.next_open()
    cuda(*(("cuMemPoolDestroy", pool) if change == "it is destroyed" else ("cuDeviceSetMemPool", 0, another)))
    grants.release()
    grants.answer(question)
    assert cuda.ended() == 0
    assert grants.only_peer().used() == card.gpus()[0]["held"][cuda.pid] == CONTEXT + (4 + lives) * PIECE


def test_what_waits_for_the_card_is_charged_to_the_pool_that_is_current_when_it_is_served(cuda, charged):
    cuda("cuMemFree_v2", cuda.new("cuMemAlloc_v2", 64 * MIB))  # the lease has room
    full, another = cuda.new("cuMemPoolCreate", layouts.pool(most=1)), cuda.new("cuMemPoolCreate", layouts.pool())
    cuda("cuDeviceSetMemPool", 0, full)
    result = cuda.run(f"""
@ctypes.CFUNCTYPE(None)
def choose():
    lib.cuDeviceSetMemPool(0, ctypes.c_uint64({another}))
lib.sim_after(b"cuMemAllocAsync", choose)  # the pool had no room, and the shim is about to try again
answer = lib.cuMemAllocAsync(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 20), None)
""")
    assert result == 0
    assert charged(cuda) == PIECE


def test_what_was_undone_in_a_pool_does_not_wait_in_another_that_has_room(grants_of, program, card):
    cuda = program(grants := grants_of(quota=CONTEXT + 6 * PIECE))
    cuda.use()
    another = cuda.new("cuMemPoolCreate", layouts.pool())
    cuda("cuMemPoolSetAttribute", another, layouts.RELEASE_THRESHOLD, {"out": 2**64 - 1})
    cuda("cuMemFreeAsync", cuda.new("cuMemAllocFromPoolAsync", 2 * PIECE, another, 0), 0)
    fragment(cuda)
    result = cuda.run(f"""
@ctypes.CFUNCTYPE(None)
def choose():
    lib.cuDeviceSetMemPool(0, ctypes.c_uint64({another}))
lib.sim_before(b"cuMemFreeAsync", choose)  # which undoes it
answer = lib.cuMemAllocAsync(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(32 << 20), None)
""")
    assert result == 0
    assert grants.only_peer().used() == card.gpus()[0]["held"][cuda.pid] == CONTEXT + 6 * PIECE
