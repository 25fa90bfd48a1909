"""Plain device memory under a quota."""

import pytest

from shim.binding import Code, Type
from tests.support.card import CONTEXT, MIB
from tests.support.eventually import until

OUT_OF_MEMORY, NOT_PERMITTED, INVALID_VALUE, INVALID_CONTEXT = 2, 800, 1, 201
WAYS = ["dlsym", "linked", "cuMemAlloc/13000/0", "cuMemAlloc/13000/2"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_is_charged(grants, program, way):
    cuda = program(grants)
    cuda.use()
    cuda.new("cuMemAlloc_v2", 3 * MIB, way=way)
    assert grants.only_peer().used() == CONTEXT + 4 * MIB


def test_a_free_gives_back(grants, program):
    cuda = program(grants)
    cuda.use()
    address = cuda.new("cuMemAlloc_v2", 100)
    assert grants.only_peer().used() == CONTEXT + 100
    cuda("cuMemFree_v2", address)
    assert grants.only_peer().used() == CONTEXT


def test_beyond_the_quota_it_is_cudas_out_of_memory_and_the_program_goes_on(grants_of, program):
    grants = grants_of(quota=CONTEXT + 64 * MIB)
    cuda = program(grants)
    cuda.use()
    kept = cuda.new("cuMemAlloc_v2", 40 * MIB)
    assert cuda.result("cuMemAlloc_v2", {"out": 0}, 26 * MIB) == OUT_OF_MEMORY
    assert cuda.new("cuMemAlloc_v2", 24 * MIB)
    cuda("cuMemFree_v2", kept)
    assert grants.only_peer().used() == CONTEXT + 24 * MIB


def test_allocations_inside_the_lease_need_no_message(grants_of, program):
    cuda = program(grants := grants_of(extra=512 * MIB))
    cuda.use()
    asked = len(grants.only_peer().frames)
    for _ in range(20):
        cuda("cuMemFree_v2", cuda.new("cuMemAlloc_v2", 4 * MIB))
    assert len(grants.only_peer().frames) == asked


def test_a_waiting_call_returns_when_it_is_granted(grants, program):
    cuda = program(grants)
    cuda.use()
    grants.hold()
    cuda.start_new("cuMemAlloc_v2", 8 * MIB)
    question = grants.next_open()
    assert question[1].bytes == 8 * MIB
    grants.answer(question)
    reply = cuda.receive()
    assert (reply["result"], reply["kept"][0] > 0) == (0, True)


def test_the_program_sees_its_quota_as_the_card(grants_of, program):
    cuda = program(grants_of(quota=300 * MIB))
    cuda.use()
    cuda.new("cuMemAlloc_v2", 34 * MIB)
    free, total = cuda("cuMemGetInfo_v2", {"out": 0}, {"out": 0})
    assert (free, total) == (200 * MIB, 300 * MIB)
    assert cuda("cuDeviceTotalMem_v2", {"out": 0}, 0) == [300 * MIB]


def test_null_out_parameters(grants, program):
    cuda = program(grants)
    cuda.use()
    assert cuda("cuMemGetInfo_v2", None, {"out": 0}) == [1024 * MIB]
    assert cuda("cuMemGetInfo_v2", {"out": 0}, None) == [1024 * MIB - CONTEXT]
    assert cuda.result("cuMemAlloc_v2", None, MIB) == INVALID_VALUE
    assert cuda.result("cuDeviceTotalMem_v2", None, 0) == INVALID_VALUE
    assert grants.only_peer().used() == CONTEXT


@pytest.mark.parametrize(("size", "expected"), [(0, INVALID_VALUE), (2**64 - 1, OUT_OF_MEMORY), (2**63, OUT_OF_MEMORY)])
def test_sizes_that_make_no_sense(grants, program, size, expected):
    cuda = program(grants)
    cuda.use()
    assert cuda.result("cuMemAlloc_v2", {"out": 0}, size) == expected
    assert cuda.result("cuMemAllocPitch_v2", {"out": 0}, {"out": 0}, size, 2**40, 4) == expected
    assert grants.only_peer().used() == CONTEXT


def test_unknown_and_freed_pointers_are_the_drivers_business(grants, program):
    cuda = program(grants)
    cuda.use()
    address = cuda.new("cuMemAlloc_v2", 2 * MIB)
    cuda("cuMemFree_v2", address)
    for wrong in (address, 12345, 2**64 - 1):
        assert cuda.result("cuMemFree_v2", wrong) == INVALID_VALUE
    assert grants.only_peer().used() == CONTEXT


def test_without_a_context_it_is_cudas_own_error(grants, program):
    cuda = program(grants)
    cuda("cuInit", 0)
    assert cuda.result("cuMemAlloc_v2", {"out": 0}, MIB) == INVALID_CONTEXT
    assert cuda.result("cuMemGetInfo_v2", {"out": 0}, {"out": 0}) == INVALID_CONTEXT


def test_without_a_context_on_a_thread_beside_one_that_has_it(grants, program):
    cuda = program(grants)
    cuda.use()
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    result = cuda.run("""
results = []
def alone():
    results.append(lib.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 20)))
thread = threading.Thread(target=alone)
thread.start(); thread.join()
answer = results
""")
    assert result == [INVALID_CONTEXT]
    assert grants.only_peer().used() == CONTEXT + 2 * MIB


def test_no_driver_call_beside_its_own_inside_the_lease(grants_of, program):
    cuda = program(grants_of(extra=16 * MIB))
    cuda.use()
    cuda.new("cuMemAlloc_v2", MIB)
    before, after = cuda.run("""
calls = lib.sim_all_calls
calls.restype = ctypes.c_uint64
address = ctypes.c_uint64()
before = calls()
for _ in range(100):
    assert lib.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4096)) == 0
    assert lib.cuMemFree_v2(address) == 0
answer = before, calls()
""")
    assert after - before == 2 * 100


def test_without_a_scheduler_there_is_no_memory_and_one_line(card, tmp_path):
    from tests.support.grants import BUILD
    from tests.support.program import Program

    env = {"GPUSHARE_SOCKET": str(tmp_path / "none.sock"), "LD_PRELOAD": str(BUILD / "libgpushare.so")}
    cuda = Program(card, env)
    cuda("cuInit", 0)
    assert cuda.result("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == OUT_OF_MEMORY
    assert cuda.result("cuCtxCreate_v2", {"out": 0}, 0, 0) == OUT_OF_MEMORY
    assert cuda.result("cuDeviceTotalMem_v2", {"out": 0}, 0) == OUT_OF_MEMORY
    assert card.used() == 0
    (line,) = cuda.end().splitlines()
    assert line.startswith("gpushare: no GPU memory")
    assert "none.sock" in line


def test_a_refusal_is_not_permitted(grants_of, program, card):
    cuda = program(grants_of(refuse=Code.NOT_RUNNING))
    cuda("cuInit", 0)
    assert cuda.result("cuDevicePrimaryCtxRetain", {"out": 0}, 0) == NOT_PERMITTED
    assert card.used() == 0
    assert len(cuda.end().splitlines()) == 1


def test_frees_are_sent_only_under_pressure(grants, program):
    cuda = program(grants)
    cuda.use()
    peer = grants.only_peer()
    addresses = [cuda.new("cuMemAlloc_v2", 2 * MIB) for _ in range(2)]
    cuda("cuMemFree_v2", addresses[0])
    assert Type.RELEASED not in [frame.type for frame in peer.frames]
    peer.page[0].pressure = True
    cuda("cuMemFree_v2", addresses[1])
    until(lambda: peer.frames[-1].type == Type.RELEASED)


def test_reset_of_the_primary_context_gives_everything_back(grants, program):
    cuda = program(grants)
    cuda.use()
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    cuda.new("cuMemAllocManaged", 2 * MIB, 1)
    cuda("cuDevicePrimaryCtxReset_v2", 0)
    assert grants.only_peer().used() == 0


def test_contexts_of_the_programs_own_are_charged_each(grants, program):
    cuda = program(grants)
    cuda("cuInit", 0)
    first, second = (cuda.new("cuCtxCreate_v2", 0, 0) for _ in range(2))
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    assert grants.only_peer().used() == 2 * CONTEXT + 2 * MIB
    cuda("cuCtxDestroy_v2", second)
    assert grants.only_peer().used() == CONTEXT
    cuda("cuCtxDestroy_v2", first)
    assert grants.only_peer().used() == 0


def test_the_scheduler_may_be_restarted_while_a_call_waits(grants, program):
    cuda = program(grants)
    cuda.use()
    grants.hold()
    cuda.start_new("cuMemAlloc_v2", 8 * MIB)
    _, asked = grants.next_open()
    grants.go_away()
    grants.listen()
    again = grants.next_open()
    assert (again[1].serial, again[1].bytes, again[0].reconnected) == (asked.serial, asked.bytes, True)
    assert again[0].used() == CONTEXT
    grants.answer(again)
    assert cuda.receive()["result"] == 0
    assert again[0].used() == CONTEXT + 8 * MIB


def test_the_32_bit_calls(grants, program):
    """The ABI of before CUDA 3.2: refused by today's driver when an address does not fit, and never uncharged."""
    cuda = program(grants)
    cuda.use()
    peer = grants.only_peer()
    charged = {name: cuda.result(name, *arguments) == 0 for name, arguments in {
        "cuMemAlloc": [{"out": 0}, 4 * MIB],
        "cuMemAllocPitch": [{"out": 0}, {"out": 0}, 4096, 512, 4],
    }.items()}  # fmt: skip
    assert (peer.used() > CONTEXT) == any(charged.values())
    assert cuda.result("cuMemFree", 12345) != 0


def test_a_pitched_allocation_is_charged_by_its_pitch(grants, program, card):
    cuda = program(grants)
    cuda.use()
    address, pitch = cuda("cuMemAllocPitch_v2", {"out": 0}, {"out": 0}, 1000, 10_000, 4)
    assert pitch >= 1000
    assert grants.only_peer().used() == card.used()
    cuda("cuMemFree_v2", address)
    assert grants.only_peer().used() == CONTEXT


def test_managed_memory_is_charged_by_size(grants, program, card):
    cuda = program(grants)
    cuda.use()
    cuda.new("cuMemAllocManaged", 50 * MIB, 1)
    assert grants.only_peer().used() == card.used() == CONTEXT + 50 * MIB
