"""Stream-ordered allocations are charged by what their pool has reserved."""

import pytest

from tests.support import layouts
from tests.support.card import CONTEXT, MIB

OUT_OF_MEMORY, INVALID_VALUE = 2, 1
KEEP_ALL = 2**64 - 1
WAYS = ["dlsym", "linked", "cuMemAllocAsync/13000/0", "cuMemAllocAsync/13000/2"]


def keep(cuda, size=KEEP_ALL, device=0):
    """Lets the device's default pool keep what is freed."""
    pool = cuda.new("cuDeviceGetDefaultMemPool", device)
    cuda("cuMemPoolSetAttribute", pool, layouts.RELEASE_THRESHOLD, {"out": size})
    return pool


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_is_charged_what_the_pool_reserves(cuda, charged, way):
    cuda.new("cuMemAllocAsync", MIB, 0, way=way)
    assert charged(cuda) == 32 * MIB


def test_the_per_thread_twin(cuda, charged):
    address = cuda.new("cuMemAllocAsync_ptsz", 40 * MIB, 0)
    assert charged(cuda) == 64 * MIB
    cuda("cuMemFreeAsync_ptsz", address, 0)
    cuda("cuCtxSynchronize")
    cuda.new("cuMemAllocFromPoolAsync_ptsz", 70 * MIB, cuda.new("cuDeviceGetMemPool", 0), 0)
    assert charged(cuda) == 96 * MIB


def test_what_a_pool_keeps_stays_charged_until_it_is_trimmed(cuda, charged):
    pool = keep(cuda)
    address = cuda.new("cuMemAllocAsync", 100 * MIB, 0)
    cuda("cuMemFreeAsync", address, 0)
    cuda("cuCtxSynchronize")
    assert charged(cuda) == 128 * MIB
    cuda("cuMemPoolTrimTo", pool, 0)
    assert charged(cuda) == 0


def test_a_lower_threshold_is_noticed(cuda, charged):
    keep(cuda)
    cuda("cuMemFreeAsync", cuda.new("cuMemAllocAsync", 100 * MIB, 0), 0)
    keep(cuda, 0)
    cuda("cuCtxSynchronize")
    keep(cuda, 0)
    assert charged(cuda) == 0


def test_no_driver_call_and_no_message_where_the_pool_has_room(cuda, grants):
    keep(cuda)
    cuda("cuMemFreeAsync", cuda.new("cuMemAllocAsync", 20 * MIB, 0), 0)
    frames = len(grants.only_peer().frames)
    before, after = cuda.run("""
import ctypes
pair = ctypes.c_uint64()
allocate, free, calls = lib.cuMemAllocAsync, lib.cuMemFreeAsync, lib.sim_all_calls
calls.restype = ctypes.c_uint64
before = calls()
for _ in range(200):
    assert allocate(ctypes.byref(pair), ctypes.c_size_t(1 << 20), None) == 0
    assert free(pair, None) == 0
answer = before, calls()
""")
    assert after - before == 2 * 200
    assert len(grants.only_peer().frames) == frames


def test_a_pool_is_looked_at_once_in_a_while(cuda):
    keep(cuda)
    cuda("cuMemFreeAsync", cuda.new("cuMemAllocAsync", 20 * MIB, 0), 0)
    looks = cuda.run("""
import ctypes
pair = ctypes.c_uint64()
lib.sim_calls.restype = ctypes.c_uint64
before = lib.sim_calls(b"cuMemPoolGetAttribute")
for _ in range(1024):
    assert lib.cuMemAllocAsync(ctypes.byref(pair), ctypes.c_size_t(1 << 20), None) == 0
    assert lib.cuMemFreeAsync(pair, None) == 0
answer = lib.sim_calls(b"cuMemPoolGetAttribute") - before
""")
    assert looks == 4  # once in 256 MiB


def test_beyond_the_quota(grants_of, program):
    cuda = program(grants := grants_of(quota=CONTEXT + 64 * MIB))
    cuda.use()
    first = cuda.new("cuMemAllocAsync", 30 * MIB, 0)
    assert cuda.result("cuMemAllocAsync", {"out": 0}, 40 * MIB, 0) == OUT_OF_MEMORY
    assert grants.only_peer().used() == CONTEXT + 32 * MIB
    second = cuda.new("cuMemAllocAsync", 32 * MIB, 0)
    cuda("cuMemFreeAsync", first, 0)
    cuda("cuMemFreeAsync", second, 0)


@pytest.mark.parametrize("size", [0, 2**64 - 1, 2**63])
def test_sizes_that_make_no_sense(cuda, charged, size):
    assert cuda.result("cuMemAllocAsync", {"out": 0}, size, 0) in (INVALID_VALUE, OUT_OF_MEMORY)
    assert cuda.result("cuMemAllocAsync", None, MIB, 0) == INVALID_VALUE
    assert charged(cuda) == 0


def test_a_plain_free_of_a_pools_memory(cuda, charged):
    cuda("cuMemFree_v2", cuda.new("cuMemAllocAsync", MIB, 0))
    cuda("cuCtxSynchronize")
    keep(cuda, 0)
    assert charged(cuda) == 0


def test_a_pool_of_the_programs_own(cuda, charged):
    pool = cuda.new("cuMemPoolCreate", layouts.pool())
    address = cuda.new("cuMemAllocFromPoolAsync", 50 * MIB, pool, 0)
    assert charged(cuda) == 64 * MIB
    cuda("cuMemPoolDestroy", pool)
    cuda("cuMemFreeAsync", address, 0)
    cuda("cuCtxSynchronize")
    assert charged(cuda) == 0


def test_another_current_pool(cuda, charged):
    pool = cuda.new("cuMemPoolCreate", layouts.pool())
    cuda.new("cuMemAllocAsync", MIB, 0)
    cuda("cuDeviceSetMemPool", 0, pool)
    cuda.new("cuMemAllocAsync", MIB, 0)
    assert charged(cuda) == 64 * MIB
    assert cuda.new("cuMemGetMemPool", layouts.location(), 1) == pool
    cuda("cuMemSetMemPool", layouts.location(), 1, cuda.new("cuMemGetDefaultMemPool", layouts.location(), 1))
    cuda.new("cuMemAllocAsync", MIB, 0)
    assert charged(cuda) == 64 * MIB


def test_pressure_gives_back_what_the_driver_has(cuda, grants, charged):
    cuda("cuMemFreeAsync", cuda.new("cuMemAllocAsync", 100 * MIB, 0), 0)
    cuda("cuCtxSynchronize")  # the driver gives the pool's memory back, and nobody hears of it
    assert grants.only_peer().used() == CONTEXT + 128 * MIB
    grants.only_peer().page[0].pressure = True
    cuda.new("cuMemAllocAsync", MIB, 0)
    assert charged(cuda) == 32 * MIB


def test_an_imported_pool_is_its_exporters(cuda, program, grants, charged):
    pool = cuda.new("cuMemPoolCreate", layouts.pool(handle_type=1))
    address = cuda.new("cuMemAllocFromPoolAsync", MIB, pool, 0)
    (fd,) = cuda("cuMemPoolExportToShareableHandle", {"out": 0}, pool, 1, 0)[:1]
    (data,) = cuda("cuMemPoolExportPointer", {"bytes": bytes(64).hex()}, address)
    assert charged(cuda) == 32 * MIB
    other = program(grants)
    other.use()
    here = other.run(f"import os; answer = os.open('/proc/{cuda.pid}/fd/{fd & 0xFFFFFFFF}', os.O_RDWR)")
    imported = other.new("cuMemPoolImportFromShareableHandle", here, 1, 0)
    assert other.new("cuMemPoolImportPointer", imported, {"bytes": data})
    assert (charged(other), charged(cuda)) == (0, 32 * MIB)


def test_a_pool_on_the_host_is_not_charged(cuda, charged):
    pool = cuda.new("cuMemPoolCreate", layouts.pool(kind=layouts.HOST))
    address = cuda.new("cuMemAllocFromPoolAsync", 50 * MIB, pool, 0)
    assert charged(cuda) == 0
    cuda("cuMemFreeAsync", address, 0)
    cuda("cuMemPoolDestroy", pool)
    assert charged(cuda) == 0


@pytest.mark.parametrize("ask", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
def test_the_hosts_default_pool_is_not_charged(cuda, charged, ask):
    pool = cuda.new(ask, layouts.location(kind=layouts.HOST), layouts.PINNED)
    address = cuda.new("cuMemAllocFromPoolAsync", 50 * MIB, pool, 0)
    assert charged(cuda) == 0
    cuda("cuMemFreeAsync", address, 0)
    assert cuda.result(ask, None, layouts.location(), layouts.PINNED) == INVALID_VALUE
    assert cuda.result(ask, {"out": 0}, None, layouts.PINNED) == INVALID_VALUE


@pytest.mark.parametrize("kind", [layouts.NOWHERE, layouts.DEVICE, layouts.HOST])
def test_a_pool_of_managed_memory_is_charged_wherever_it_prefers_to_lie(cuda, charged, kind):
    """It moves to the GPU that uses it: a pool that names no GPU would be a way around the quota."""
    pool = cuda.new("cuMemPoolCreate", layouts.pool(kind=kind, type_=layouts.MANAGED))
    cuda.new("cuMemAllocFromPoolAsync", 50 * MIB, pool, 0)
    assert charged(cuda) == 64 * MIB
    assert cuda.result("cuMemAllocFromPoolAsync", {"out": 0}, 1000 * MIB, pool, 0) == OUT_OF_MEMORY
