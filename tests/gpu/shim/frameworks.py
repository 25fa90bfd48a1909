"""One framework's allocations on the card: `frameworks.py FOLDER NAME [beyond]`.

Adds lines to FOLDER/said: "result …" (what was computed, to be the same with and without the shim), "mark" (it holds
memory until FOLDER/go-1 is there, at the second mark go-2, so that its charge can be compared with NVML's figure) and,
with `beyond`, "beyond …": the framework's own out-of-memory error, after which it computes once more. At last "end".
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

MIB = 1 << 20
HOLD = 1024 * MIB
PATIENCE = 60  # seconds at a mark, should whoever compares have died
marks = 0


def say(line: str) -> None:
    with (Path(sys.argv[1]) / "said").open("a") as said:
        said.write(f"{line}\n")


def mark(result: object) -> None:
    global marks
    marks += 1
    say(f"result {result}")
    say("mark")
    go = Path(sys.argv[1]) / f"go-{marks}"
    deadline = time.monotonic() + PATIENCE
    while not go.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def driver() -> tuple[Callable[[], None], Callable[[], str]]:
    """No framework: the driver's own calls. Needs no GPU code, so that the simulated card can run it."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        if code := getattr(cuda, name)(*arguments):
            raise RuntimeError(f"{name}: {code}")

    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)

    def compute() -> None:
        pointer, last = ctypes.c_uint64(), ctypes.c_uint32()
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(HOLD))
        call("cuMemsetD32_v2", pointer, 12345, ctypes.c_size_t(HOLD // 4))
        call("cuMemcpyDtoH_v2", ctypes.byref(last), ctypes.c_uint64(pointer.value + HOLD - 4), ctypes.c_size_t(4))
        mark(last.value)
        call("cuMemFree_v2", pointer)

    def beyond() -> str:
        held = []
        while True:
            pointer = ctypes.c_uint64()
            if code := cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64 * MIB)):
                break
            held.append(pointer)
        for pointer in held:
            call("cuMemFree_v2", pointer)
        return "CUDA_ERROR_OUT_OF_MEMORY" if code == 2 else str(code)

    return compute, beyond


def torch_with(settings: str, graphs: bool = False) -> tuple[Callable[[], None], Callable[[], str]]:
    if settings:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = settings
        os.environ["PYTORCH_ALLOC_CONF"] = settings
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS is not deterministic, and PyTorch refuses
    import torch

    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False

    def step(layer: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        return torch.relu(layer(data)).sum()

    def compute() -> None:
        torch.manual_seed(1)
        held = torch.empty(HOLD, dtype=torch.uint8, device="cuda")
        layer = torch.nn.Linear(512, 512, device="cuda")
        data = torch.randn(2048, 512, device="cuda")
        if graphs:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                step(layer, data)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = step(layer, data)
            for _ in range(5):
                graph.replay()
            result = out.item()
        else:
            result = step(layer, data).item()
        mark(f"{result:.6f}")
        del held

    def beyond() -> str:
        held = []
        try:
            while True:
                held.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError as error:
            message = type(error).__name__
        del held
        torch.cuda.empty_cache()
        return message

    return compute, beyond


def jax_with(preallocate: bool) -> tuple[Callable[[], None], Callable[[], str]]:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if preallocate else "false"
    import jax
    import jax.numpy as jnp

    def compute() -> None:
        held = jnp.zeros(HOLD // 4, dtype=jnp.float32).block_until_ready()
        data = jax.random.normal(jax.random.PRNGKey(1), (1024, 1024))
        result = float(jnp.tanh(data @ data.T).sum())
        # XLA chooses how to multiply by timing it: of 24 runs without the shim one had 0.001 less (an H200).
        mark(f"{result:.1f}")
        del held

    def beyond() -> str:
        held = []
        try:
            while True:
                held.append(jnp.zeros(64 * MIB // 4, dtype=jnp.float32).block_until_ready())
        except jax.errors.JaxRuntimeError as error:
            message = str(error).partition(":")[0]
        held.clear()
        return message

    return compute, beyond


def cupy() -> tuple[Callable[[], None], Callable[[], str]]:
    import cupy

    def compute() -> None:
        held = cupy.zeros(HOLD, dtype=cupy.uint8)
        data = cupy.arange(1 << 20, dtype=cupy.float64).reshape(1024, 1024)
        mark(f"{float((data @ data).sum()):.6e}")
        del held

    def beyond() -> str:
        held = []
        try:
            while True:
                held.append(cupy.zeros(64 * MIB, dtype=cupy.uint8))
        except cupy.cuda.memory.OutOfMemoryError as error:
            message = type(error).__name__
        held.clear()
        cupy.get_default_memory_pool().free_all_blocks()
        return message

    return compute, beyond


def triton() -> tuple[Callable[[], None], Callable[[], str]]:
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(a, b, out, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(out + at, tl.load(a + at, mask=at < count) + tl.load(b + at, mask=at < count), mask=at < count)

    _, beyond = torch_with("")

    def compute() -> None:
        count = HOLD // 16
        a = torch.arange(count, dtype=torch.float32, device="cuda")
        out = torch.empty_like(a)
        add[(triton.cdiv(count, 1024),)](a, a, out, count, block=1024)
        mark(f"{out.double().sum().item():.6e}")

    return compute, beyond


def workers() -> tuple[Callable[[], None], Callable[[], str]]:
    """A data loader with worker processes, forked after CUDA has been initialised."""
    compute_once, beyond = torch_with("")
    import torch

    class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 256

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((1024,), float(index))

    def compute() -> None:
        torch.ones(1, device="cuda")
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=16, num_workers=4, pin_memory=True)
        total = sum(batch.cuda(non_blocking=True).double().sum().item() for batch in loader)
        say(f"result {total}")
        compute_once()

    return compute, beyond


FRAMEWORKS: dict[str, Callable[[], tuple[Callable[[], None], Callable[[], str]]]] = {
    "driver API": driver,
    "torch native": lambda: torch_with(""),
    "torch expandable_segments": lambda: torch_with("expandable_segments:True"),
    "torch cudaMallocAsync": lambda: torch_with("backend:cudaMallocAsync"),
    "torch CUDA graphs": lambda: torch_with("", graphs=True),
    "torch data loader workers": workers,
    "jax preallocating": lambda: jax_with(True),
    "jax growing": lambda: jax_with(False),
    "cupy": cupy,
    "triton": triton,
}


def main() -> None:
    compute, beyond = FRAMEWORKS[sys.argv[2]]()
    compute()
    if "beyond" in sys.argv[3:]:
        say(f"beyond {beyond()}")
        compute()
    say("end")


if __name__ == "__main__":
    main()
