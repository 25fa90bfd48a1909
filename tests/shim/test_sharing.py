"""Memory of another process: its exporter is charged, once."""

import struct

from tests.support.card import MIB


def test_ipc_handles(cuda, program, grants, charged):
    address = cuda.new("cuMemAlloc_v2", 4 * MIB)
    (handle, _) = cuda("cuIpcGetMemHandle", {"bytes": bytes(64).hex()}, address), 0
    other = program(grants)
    other.use()
    code = """
class Handle(ctypes.Structure):
    _fields_ = [("raw", ctypes.c_char * 64)]
out = ctypes.c_uint64()
handle = Handle.from_buffer_copy(bytes.fromhex("%s"))
lib.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
answer = lib.cuIpcOpenMemHandle_v2(ctypes.byref(out), handle, 1), out.value
"""
    result, mapped = other.run(code % handle[0])
    assert result == 0
    assert (charged(other), charged(cuda)) == (0, 4 * MIB)
    other("cuIpcCloseMemHandle", mapped)
    assert (charged(other), charged(cuda)) == (0, 4 * MIB)


def test_external_memory(cuda, program, grants, charged):
    properties = {"bytes": struct.pack("iiiiP8x", 1, 1, 1, 0, 0).hex()}
    handle = cuda.new("cuMemCreate", 4 * MIB, properties, 0)
    fd = cuda("cuMemExportToShareableHandle", {"out": 0}, handle, 1, 0)[0] & 0xFFFFFFFF
    other = program(grants)
    other.use()
    here = other.run(f"answer = os.open('/proc/{cuda.pid}/fd/{fd}', os.O_RDWR)")
    descriptor = {"bytes": struct.pack("i4xi12xQI64x", 1, here, 4 * MIB, 0).ljust(104, b"\0").hex()}
    external = other.new("cuImportExternalMemory", descriptor)
    buffer = {"bytes": struct.pack("QQI68x", 0, 4 * MIB, 0).hex()}
    mapped = other.new("cuExternalMemoryGetMappedBuffer", external, buffer)
    assert (charged(other), charged(cuda)) == (0, 4 * MIB)
    other("cuMemFree_v2", mapped)
    assert (charged(other), charged(cuda)) == (0, 4 * MIB)


def test_memory_of_the_host_is_never_charged(cuda, charged):
    address = cuda.new("cuMemHostAlloc", 64 * MIB, 0)
    cuda.new("cuMemAllocHost_v2", 64 * MIB)
    assert charged(cuda) == 0
    cuda("cuMemFreeHost", address)
    assert charged(cuda) == 0
