"""Pools, virtual memory, arrays, captures, sharing, and looking calls up, on the simulated driver."""

import textwrap

from tests.support.card import Card

LAYOUTS = """
class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]

class AllocationProperties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handle_types", c_int), ("location", Location), ("security", c_void_p),
                ("flags", ctypes.c_ubyte * 8)]

class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]

DEVICE = Location(1, 0)
READ_WRITE = Access(DEVICE, 3)
"""


def check(card: Card, program: str) -> None:
    card.check(LAYOUTS + textwrap.dedent(program))


def test_a_pool_reserves_in_32_mib_and_gives_back_when_synchronised(card: Card) -> None:
    check(
        card,
        """
        cuda = Cuda()
        before = cuda.free_bytes()
        first, second = cuda.alloc_async(MIB), cuda.alloc_async(MIB)
        assert before - cuda.free_bytes() == 32 * MIB
        cuda("cuMemFreeAsync", c_uint64(first), None)
        assert cuda.alloc_async(MIB) == first          # used again at once
        big = cuda.alloc_async(40 * MIB)
        assert before - cuda.free_bytes() == 96 * MIB
        for address in (first, second, big):
            cuda("cuMemFreeAsync", c_uint64(address), None)
        assert before - cuda.free_bytes() == 96 * MIB  # not yet
        cuda("cuCtxSynchronize")
        assert cuda.free_bytes() == before
        assert cuda.code("cuMemFreeAsync", c_uint64(first), None) == INVALID_VALUE
        """,
    )


def test_a_pool_keeps_what_its_threshold_says(card: Card) -> None:
    check(
        card,
        """
        cuda = Cuda()
        pool, number = c_void_p(), c_uint64((1 << 64) - 1)
        cuda("cuDeviceGetDefaultMemPool", byref(pool), 0)
        cuda("cuMemPoolSetAttribute", pool, 4, byref(number))
        def attribute(which):
            cuda("cuMemPoolGetAttribute", pool, which, byref(number))
            return number.value
        address = cuda.alloc_async(1000)
        assert (attribute(5), attribute(7)) == (32 * MIB, 1024)
        assert cuda.free(address) == 0                 # the plain free takes pool memory too, and synchronises
        assert (attribute(5), attribute(7), attribute(6), attribute(8)) == (32 * MIB, 0, 32 * MIB, 1024)
        cuda("cuMemPoolTrimTo", pool, c_size_t(0))
        assert attribute(5) == 0
        """,
    )


def test_physical_memory_lives_until_released_and_unmapped(card: Card) -> None:
    check(
        card,
        """
        cuda = Cuda()
        before = cuda.free_bytes()
        properties, handle, address = AllocationProperties(1, 0, DEVICE), c_uint64(), c_uint64()
        cuda("cuMemCreate", byref(handle), c_size_t(4 * MIB), byref(properties), c_uint64(0))
        cuda("cuMemAddressReserve", byref(address), c_size_t(16 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
        for offset in (0, 4 * MIB):                    # the same memory at two addresses
            cuda("cuMemMap", c_uint64(address.value + offset), c_size_t(4 * MIB), c_size_t(0), handle, c_uint64(0))
        cuda("cuMemSetAccess", address, c_size_t(8 * MIB), byref(READ_WRITE), c_size_t(1))
        cuda.write(address.value + 5, b"twice")
        assert cuda.read(address.value + 4 * MIB + 5, 5) == b"twice"
        cuda("cuMemRelease", handle)
        assert cuda.code("cuMemRelease", handle) == INVALID_VALUE
        assert cuda.code("cuMemAddressFree", address, c_size_t(16 * MIB)) == INVALID_VALUE
        assert cuda.code("cuMemUnmap", address, c_size_t(2 * MIB)) == INVALID_VALUE
        assert before - cuda.free_bytes() == 4 * MIB
        cuda("cuMemUnmap", address, c_size_t(8 * MIB))
        assert cuda.free_bytes() == before
        cuda("cuMemAddressFree", address, c_size_t(16 * MIB))
        """,
    )


def test_an_exported_handle_is_a_file_with_the_same_bytes(card: Card) -> None:
    check(
        card,
        """
        cuda = Cuda()
        before = cuda.free_bytes()
        properties, handle, imported, file = AllocationProperties(1, 1, DEVICE), c_uint64(), c_uint64(), c_int()
        cuda("cuMemCreate", byref(handle), c_size_t(2 * MIB), byref(properties), c_uint64(0))
        cuda("cuMemExportToShareableHandle", byref(file), handle, 1, c_uint64(0))
        cuda("cuMemImportFromShareableHandle", byref(imported), c_void_p(file.value), 1)
        address = c_uint64()
        cuda("cuMemAddressReserve", byref(address), c_size_t(4 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
        for offset, one in ((0, handle), (2 * MIB, imported)):
            cuda("cuMemMap", c_uint64(address.value + offset), c_size_t(2 * MIB), c_size_t(0), one, c_uint64(0))
        cuda("cuMemSetAccess", address, c_size_t(4 * MIB), byref(READ_WRITE), c_size_t(1))
        cuda.write(address.value, b"shared")
        assert cuda.read(address.value + 2 * MIB, 6) == b"shared"
        assert before - cuda.free_bytes() == 2 * MIB   # the exporter holds it, once
        """,
    )


def test_arrays_take_their_true_size(card: Card) -> None:
    check(
        card,
        """
        cuda = Cuda()
        before = cuda.free_bytes()
        class Array(ctypes.Structure):
            _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int),
                        ("channels", c_uint), ("flags", c_uint)]
        array, mipmap = c_void_p(), c_void_p()
        cuda("cuArray3DCreate_v2", byref(array), byref(Array(1024, 1024, 2, 0x20, 4, 0)))
        assert before - cuda.free_bytes() == 32 * MIB
        cuda("cuMipmappedArrayCreate", byref(mipmap), byref(Array(1024, 1024, 0, 0x20, 4, 0)), 3)
        assert before - cuda.free_bytes() == (32 + 16 + 4 + 1 + 1) * MIB   # 21 MiB are 22 in whole blocks
        cuda("cuArrayDestroy", array)
        cuda("cuMipmappedArrayDestroy", mipmap)
        assert cuda.free_bytes() == before
        cuda("cuArray3DCreate_v2", byref(array), byref(Array(1024, 1024, 2, 0x20, 4, 0x80)))
        assert cuda.free_bytes() == before             # deferred: nothing until it is mapped
        for wrong in (Array(0, 1, 1, 1, 1, 0), Array(1, 1, 1, 99, 1, 0), Array(1, 1, 1, 1, 3, 0)):
            assert cuda.code("cuArray3DCreate_v2", byref(array), byref(wrong)) == INVALID_VALUE
        """,
    )


def test_a_captured_allocation_becomes_a_node(card: Card) -> None:
    check(
        card,
        """
        cuda = Cuda()
        before = cuda.free_bytes()
        stream, graph, execution, address, status = c_void_p(), c_void_p(), c_void_p(), c_uint64(), c_int()
        assert cuda.code("cuStreamBeginCapture_v2", None, 0) == 900
        cuda("cuStreamCreate", byref(stream), 1)
        cuda("cuStreamBeginCapture_v2", stream, 0)
        cuda("cuStreamIsCapturing", stream, byref(status))
        assert status.value == 1
        cuda("cuMemAllocAsync", byref(address), c_size_t(2 * MIB), stream)
        assert cuda.code("cuStreamSynchronize", stream) == 900
        cuda("cuStreamEndCapture", stream, byref(graph))
        count = c_size_t()
        cuda("cuGraphGetNodes", graph, None, byref(count))
        assert count.value == 1
        cuda("cuGraphInstantiateWithFlags", byref(execution), graph, c_uint64(0))
        assert cuda.free_bytes() == before
        cuda("cuGraphLaunch", execution, stream)
        cuda.write(address.value, b"alive")
        assert cuda.read(address.value, 5) == b"alive"
        assert cuda.code("cuGraphLaunch", execution, stream) == INVALID_VALUE   # not freed since
        cuda("cuMemFreeAsync", address, stream)
        cuda("cuGraphLaunch", execution, stream)
        cuda("cuMemFreeAsync", address, stream)
        cuda("cuDeviceGraphMemTrim", 0)
        assert cuda.free_bytes() == before
        """,
    )


def test_ipc_memory_is_the_exporters(card: Card) -> None:
    exporter = card.python("""
import sys
from tests.support.cuda import *
cuda = Cuda()
address = cuda.alloc(3 * MIB)
cuda.write(address, b"from the exporter")
handle = create_string_buffer(64)
cuda("cuIpcGetMemHandle", handle, c_uint64(address))
print(handle.raw.hex(), flush=True)
sys.stdin.read()
""")
    assert exporter.stdout is not None
    handle = exporter.stdout.readline().strip()
    card.check(f"""
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_ubyte * 64)]
        cuda = Cuda()
        before = cuda.free_bytes()
        handle, address = Handle.from_buffer_copy(bytes.fromhex("{handle}")), c_uint64()
        cuda("cuIpcOpenMemHandle_v2", byref(address), handle, 1)
        assert cuda.read(address.value, 17) == b"from the exporter"
        assert cuda.free_bytes() == before
        cuda("cuIpcCloseMemHandle", address)
        assert cuda.code("cuIpcCloseMemHandle", address) == INVALID_VALUE
    """)


def test_calls_are_found_by_name_version_and_stream_flag(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        def look(name, version, flags=0):
            pointer, status = c_void_p(), c_int(-1)
            cuda("cuGetProcAddress_v2", name, byref(pointer), version, c_uint64(flags), byref(status))
            return pointer.value, status.value
        def exported(name):
            return ctypes.cast(getattr(cuda.library, name), c_void_p).value
        assert look(b"cuMemAlloc", 13000) == (exported("cuMemAlloc_v2"), 0)
        assert look(b"cuMemAlloc", 3010) == (exported("cuMemAlloc"), 0)
        assert look(b"cuMemAlloc", 1000) == (None, 2)
        assert look(b"cuMemAlloc_v2", 13000) == (None, 1)
        assert look(b"", 13000) == (None, 1)
        assert look(b"cuCtxCreate", 12040) == (exported("cuCtxCreate_v3"), 0)
        assert look(b"cuCtxCreate", 13000) == (exported("cuCtxCreate_v4"), 0)
        assert look(b"cuMemAllocAsync", 13000, 2) == (exported("cuMemAllocAsync_ptsz"), 0)
        assert look(b"cuMemAlloc", 13000, 2) == (exported("cuMemAlloc_v2"), 0)
        assert look(b"cuGetProcAddress", 11030) == (exported("cuGetProcAddress"), 0)
        assert look(b"cuGetProcAddress", 12000) == (exported("cuGetProcAddress_v2"), 0)
        pointer = c_void_p()
        assert cuda.code("cuGetProcAddress", b"cuNothing", byref(pointer), 13000, c_uint64(0)) == 500
        assert cuda.code("cuGetProcAddress_v2", b"cuInit", byref(pointer), 14000, c_uint64(0), None) == INVALID_VALUE
        assert cuda.code("cuGetProcAddress_v2", b"cuInit", None, 13000, c_uint64(0), None) == INVALID_VALUE
    """)


def test_a_bigger_device_heap_takes_memory(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        before, limit = cuda.free_bytes(), c_size_t()
        cuda("cuCtxSetLimit", 2, c_size_t(108 * MIB))
        assert before - cuda.free_bytes() == 100 * MIB
        cuda("cuCtxGetLimit", byref(limit), 2)
        assert limit.value == 108 * MIB
        assert cuda.code("cuCtxSetLimit", 2, c_size_t(1 << 60)) == OUT_OF_MEMORY
        assert cuda.code("cuCtxSetLimit", 99, c_size_t(1)) == 215
        cuda("cuCtxSetLimit", 2, c_size_t(0))
        assert cuda.free_bytes() == before
    """)


def test_a_modules_variables_live_in_device_memory(card: Card) -> None:
    card.check("""
        cuda = Cuda()
        before = cuda.free_bytes()
        text = b".version 6.0\\n.target sm_50\\n.address_size 64\\n.global .align 8 .b8 table[5242880];\\n"
        module, address, size = c_void_p(), c_uint64(), c_size_t()
        cuda("cuModuleLoadData", byref(module), text)
        assert before - cuda.free_bytes() == 6 * MIB
        cuda("cuModuleGetGlobal_v2", byref(address), byref(size), module, b"table")
        assert size.value == 5 * MIB
        cuda.write(address.value + 5 * MIB - 4, b"tail")
        cuda("cuModuleUnload", module)
        assert cuda.free_bytes() == before
        assert cuda.code("cuModuleLoadData", byref(module), b"\\x7fELF") == 200
    """)
