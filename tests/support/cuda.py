"""The CUDA driver by ctypes, for programs that tests run in processes of their own.

    cuda = Cuda()                      # dlopen("libcuda.so.1"), cuInit, the primary context of device 0
    address = cuda.alloc(1 << 20)      # raises Failed with CUDA's code
    cuda("cuMemFree_v2", c_uint64(address))

The code of a child process says `from tests.support.cuda import *`.
"""

import ctypes
import os
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
        self._kernel: c_void_p | None = None
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

    def compute(self, milliseconds: float, times: int = 1, stream: object = None) -> None:
        """Gives kernels that take so long each on a simulated card of their own."""
        if self._kernel is None:
            module, self._kernel = c_void_p(), c_void_p()
            self("cuModuleLoadData", byref(module), b".version 6.0\n.target sm_50\n.visible .entry compute")
            self("cuModuleGetFunction", byref(self._kernel), module, b"compute")
        words = c_uint64(0), c_uint64(int(milliseconds * 1e6))
        params = (c_void_p * 2)(*map(ctypes.addressof, words))
        for _ in range(times):
            self("cuLaunchKernel", self._kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, None)

    def had(self) -> tuple[float, float]:
        """Seconds by the simulated card's clock, and how many of them this process has had of GPU 0."""
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        pids, had, at = (c_int * 64)(), (c_uint64 * 64)(), c_uint64()
        nvml.nvmlInit_v2()
        found = nvml.sim_card_had(0, 64, pids, had, byref(at))
        return at.value / 1e9, dict(zip(pids[:found], had[:found], strict=True))[os.getpid()] / 1e9
