"""The CUDA driver by ctypes, for programs that tests run in processes of their own.

    cuda = Cuda()                      # dlopen("libcuda.so.1"), cuInit, the primary context of device 0
    address = cuda.alloc(1 << 20)      # raises Failed with CUDA's code
    cuda("cuMemFree_v2", c_uint64(address))

The code of a child process says `from tests.support.cuda import *`.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer
from typing import Any

__all__ = [
    "GIB",
    "INVALID_VALUE",
    "MIB",
    "NOT_INITIALIZED",
    "OUT_OF_MEMORY",
    "POINTER",
    "Cuda",
    "Failed",
    "byref",
    "c_char_p",
    "c_int",
    "c_size_t",
    "c_uint",
    "c_uint64",
    "c_void_p",
    "create_string_buffer",
    "ctypes",
]

MIB = 1 << 20
GIB = 1 << 30
INVALID_VALUE = 1
OUT_OF_MEMORY = 2
NOT_INITIALIZED = 3


class Failed(Exception):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: {code}")
        self.code = code


class Cuda:
    def __init__(self, device: int | None = 0) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        if device is not None:
            context = c_void_p()
            self("cuDevicePrimaryCtxRetain", byref(context), device)
            self("cuCtxSetCurrent", context)

    def code(self, name: str, *arguments: Any) -> int:
        """Calls an entry point by its exported name; its CUresult."""
        return int(getattr(self.library, name)(*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        if code := self.code(name, *arguments):
            raise Failed(name, code)

    def alloc(self, size: int, name: str = "cuMemAlloc_v2") -> int:
        address = c_uint64()
        self(name, byref(address), c_size_t(size))
        return address.value

    def alloc_async(self, size: int) -> int:
        address = c_uint64()
        self("cuMemAllocAsync", byref(address), c_size_t(size), None)
        return address.value

    def free(self, address: int) -> int:
        return self.code("cuMemFree_v2", c_uint64(address))

    def write(self, address: int, data: bytes) -> None:
        self("cuMemcpyHtoD_v2", c_uint64(address), data, c_size_t(len(data)))

    def read(self, address: int, size: int) -> bytes:
        data = create_string_buffer(size)
        self("cuMemcpyDtoH_v2", data, c_uint64(address), c_size_t(size))
        return data.raw

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def calls(self, name: str) -> int:
        """How often the simulated driver was entered by this name."""
        self.library.sim_calls.restype = c_uint64
        return int(self.library.sim_calls(name.encode()))
