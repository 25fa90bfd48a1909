"""Contexts are charged before they are made, and what they held is free when they end."""

import pytest

from tests.support.card import CONTEXT, MIB

OUT_OF_MEMORY = 2
CREATE = [
    ("cuCtxCreate", [0, 0], "cuCtxDestroy"),
    ("cuCtxCreate_v2", [0, 0], "cuCtxDestroy_v2"),
    ("cuCtxCreate_v3", [None, 0, 0, 0], "cuCtxDestroy_v2"),
    ("cuCtxCreate_v4", [None, 0, 0], "cuCtxDetach"),
    ("cuGLCtxCreate", [0, 0], "cuCtxDestroy"),
    ("cuGLCtxCreate_v2", [0, 0], "cuCtxDestroy_v2"),
    ("cuVDPAUCtxCreate", [0, 0, 0, None], "cuCtxDestroy"),
    ("cuVDPAUCtxCreate_v2", [0, 0, 0, None], "cuCtxDestroy_v2"),
]


@pytest.mark.parametrize(("create", "arguments", "destroy"), CREATE, ids=[name for name, _, _ in CREATE])
def test_every_way_to_make_and_to_end_a_context(grants, program, card, create, arguments, destroy):
    cuda = program(grants)
    cuda("cuInit", 0)
    context = cuda.new(create, *arguments)
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    peer = grants.only_peer()
    assert peer.used() == card.used() == CONTEXT + 2 * MIB
    assert peer.page[0].overhead == CONTEXT
    cuda(destroy, context)
    assert (peer.used(), peer.page[0].overhead, card.used()) == (0, 0, 0)


@pytest.mark.parametrize("release", ["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"])
def test_the_primary_context_ends_with_its_last_release(grants, program, card, release):
    cuda = program(grants)
    cuda.use()
    cuda.new("cuDevicePrimaryCtxRetain", 0)
    cuda(release, 0)
    assert grants.only_peer().used() == CONTEXT
    cuda(release, 0)
    assert grants.only_peer().used() == card.used() == 0
    cuda.use()
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    assert grants.only_peer().used() == card.used() == CONTEXT + 2 * MIB


@pytest.mark.parametrize("reset", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"])
def test_a_reset_ends_it(grants, program, card, reset):
    cuda = program(grants)
    cuda.use()
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    cuda.new("cuMemAllocAsync", 2 * MIB, 0)
    cuda(reset, 0)
    assert grants.only_peer().used() == card.used() == 0


def test_a_context_that_does_not_fit(grants_of, program, card):
    cuda = program(grants := grants_of(quota=CONTEXT - 1))
    cuda("cuInit", 0)
    assert cuda.result("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == OUT_OF_MEMORY
    assert cuda.result("cuCtxCreate_v2", {"out": 0}, 0, 0) == OUT_OF_MEMORY
    assert (grants.only_peer().used(), card.used()) == (0, 0)


def test_what_the_driver_refuses_is_not_charged(grants, program):
    cuda = program(grants)
    cuda("cuInit", 0)
    assert cuda.result("cuCtxCreate_v2", {"out": 0}, 0, 99) != 0
    assert cuda.result("cuDevicePrimaryCtxRetain", {"out": 0}, 99) != 0
    assert cuda.result("cuCtxCreate_v2", None, 0, 0) != 0
    assert cuda.result("cuDevicePrimaryCtxRetain", None, 0) != 0
    assert cuda.result("cuCtxDestroy_v2", None) != 0
    assert [peer.used() for peer in grants.peers] == [0]


def new_green(cuda):
    (resource,) = cuda("cuDeviceGetDevResource", 0, {"bytes": bytes(512).hex()}, 1)
    (descriptor, _) = cuda("cuDevResourceGenerateDesc", {"out": 0}, {"bytes": resource}, 1)
    return cuda.new("cuGreenCtxCreate", descriptor, 0, 1)


def test_a_green_context_keeps_the_primary_one(grants, program, card):
    cuda = program(grants)
    cuda("cuInit", 0)
    green = new_green(cuda)
    assert grants.only_peer().used() == card.used() == CONTEXT
    cuda("cuGreenCtxDestroy", green)
    assert grants.only_peer().used() == card.used()


def test_the_heap_of_the_gpus_own_malloc_cannot_pass_the_claim(cuda):
    heap = 2
    assert cuda.result("cuCtxSetLimit", heap, 2000 * MIB) == OUT_OF_MEMORY
    assert cuda.result("cuCtxSetLimit", heap, 16 * MIB) == 0
    assert cuda.result("cuCtxSetLimit", 0, 4096) == 0


def test_cudas_own_order_release_after_the_driver_has(grants, program):
    """Headroom grows only when the real call has returned: an observer never sees less used than there is."""
    cuda = program(grants)
    cuda.use()
    address = cuda.new("cuMemAlloc_v2", 4 * MIB)
    assert cuda.result("cuMemFree_v2", address + 1) != 0
    assert grants.only_peer().used() == CONTEXT + 4 * MIB


def test_memory_taken_in_a_green_context_goes_with_the_primary_one(grants, program, card):
    cuda = program(grants)
    primary = cuda.use()
    green = new_green(cuda)
    cuda("cuCtxSetCurrent", cuda.new("cuCtxFromGreenCtx", green))
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    cuda("cuCtxSetCurrent", primary)
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    assert grants.only_peer().used() == card.used() == CONTEXT + 4 * MIB
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    assert grants.only_peer().used() == card.used()


def test_a_context_of_ones_own_beside_the_only_place_so_far(grants, program, card):
    """Until then nothing has to be asked about where an allocation goes; from then on it has."""
    cuda = program(grants)
    cuda.use()
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    own = cuda.new("cuCtxCreate_v2", 0, 0)
    cuda.new("cuMemAlloc_v2", 4 * MIB)
    assert grants.only_peer().used() == 2 * CONTEXT + 6 * MIB
    cuda("cuCtxDestroy_v2", own)
    assert grants.only_peer().used() == CONTEXT + 2 * MIB
    assert card.used() == CONTEXT + 2 * MIB


def test_a_context_that_ended_and_came_again_is_charged_again(grants, program):
    cuda = program(grants)
    for _ in range(2):
        cuda.use()
        cuda.new("cuMemAlloc_v2", 2 * MIB)
        assert grants.only_peer().used() == CONTEXT + 2 * MIB
        cuda("cuDevicePrimaryCtxRelease_v2", 0)
        assert grants.only_peer().used() == 0
