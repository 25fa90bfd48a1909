"""Runs in a container: shares GPU memory between processes or GPUs, and looks whether it is right when it is asked.

    job_shared.py FOLDER nccl|ipc|handles|peer|alone GIB [RANK]

Holds GIB on each of two GPUs. Each number that somebody writes to FOLDER/ask is answered by a line in FOLDER/said:
"NUMBER right", or "NUMBER WRONG …". The first line is "0 right", as soon as it shares its memory. `alone` shares none.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.cuda import Cuda, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p, create_string_buffer

SHARED = 64 << 20  # bytes
DEVICE, PINNED, POSIX_FD, READ_WRITE = 1, 1, 1, 3
RANKS = 2
Look = Callable[[int], bool]


class Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = (("raw", ctypes.c_char * 64),)


def pattern(number: int) -> bytes:
    return (number * 2654435761 % 2**32).to_bytes(4, "little") * 256


def serve(folder: Path, look: Look) -> None:
    """Answers for ever."""
    last = -1
    while True:
        try:
            number = int((folder / "ask").read_text())
        except FileNotFoundError:
            number = 0
        if number != last:
            try:
                fine = "right" if look(number) else "WRONG bytes"
            except Exception as error:
                fine = f"WRONG {error!r}"
            with (folder / "said").open("a") as said:
                said.write(f"{number} {fine}\n")
            last = number
        time.sleep(0.02)


# ---- by the driver's own calls ----


def context(cuda: Cuda, device: int) -> c_void_p:
    made = c_void_p()
    cuda("cuDevicePrimaryCtxRetain", byref(made), device)
    return made


def hold(cuda: Cuda, gib: float) -> list[c_void_p]:
    """So much on each of two GPUs; the contexts. That of the first is current then."""
    contexts = [context(cuda, device) for device in range(2)]
    for each in reversed(contexts):
        cuda("cuCtxSetCurrent", each)
        cuda.alloc(int(gib * 2**30))
    return contexts


def the_other(folder: Path, kind: str, pipe: socket.socket) -> None:
    """Another process of the container, which has the memory by what comes through its standard input."""
    words = [sys.executable, __file__, str(folder), f"{kind}-other", "0"]
    subprocess.Popen(words, stdin=pipe.fileno())


def alone(cuda: Cuda, gib: float, folder: Path) -> Look:
    hold(cuda, gib)
    address = cuda.alloc(SHARED)

    def look(number: int) -> bool:
        cuda.write(address, pattern(number))
        return cuda.read(address, 1024) == pattern(number)

    return look


def peer(cuda: Cuda, gib: float, folder: Path) -> Look:
    """What is written to the second GPU is read through the first."""
    first, second = hold(cuda, gib)
    here = cuda.alloc(SHARED)
    cuda("cuCtxSetCurrent", second)
    there = cuda.alloc(SHARED)
    cuda("cuCtxSetCurrent", first)
    cuda("cuCtxEnablePeerAccess", second, c_uint(0))

    def look(number: int) -> bool:
        cuda("cuCtxSetCurrent", second)
        cuda.write(there, pattern(number))
        cuda("cuCtxSetCurrent", first)
        cuda("cuMemcpyDtoD_v2", c_uint64(here), c_uint64(there), c_size_t(1024))
        return cuda.read(here, 1024) == pattern(number)

    return look


def _asks(pipe: socket.socket, cuda: Cuda, address: int) -> Look:
    def look(number: int) -> bool:
        cuda.write(address, pattern(number))
        cuda("cuCtxSynchronize")
        pipe.sendall(struct.pack("q", number))
        return pipe.recv(1) == b"y"

    return look


def _answers(pipe: socket.socket, cuda: Cuda, address: int) -> None:
    while asked := pipe.recv(8):
        (number,) = struct.unpack("q", asked)
        pipe.sendall(b"y" if cuda.read(address, 1024) == pattern(number) else b"n")


def ipc(cuda: Cuda, gib: float, folder: Path) -> Look:
    hold(cuda, gib)
    address, handle = cuda.alloc(SHARED), Handle()
    cuda("cuIpcGetMemHandle", byref(handle), c_uint64(address))
    mine, others = socket.socketpair()
    the_other(folder, "ipc", others)
    mine.sendall(bytes(handle))
    return _asks(mine, cuda, address)


def ipc_other(cuda: Cuda, pipe: socket.socket) -> None:
    address = c_uint64()
    handle = Handle.from_buffer_copy(pipe.recv(64, socket.MSG_WAITALL))
    cuda("cuIpcOpenMemHandle_v2", byref(address), handle, c_uint(1))
    _answers(pipe, cuda, address.value)


def _mapped(cuda: Cuda, handle: c_uint64) -> int:
    address = c_uint64()
    cuda("cuMemAddressReserve", byref(address), c_size_t(SHARED), c_size_t(0), c_uint64(0), c_uint64(0))
    cuda("cuMemMap", address, c_size_t(SHARED), c_size_t(0), handle, c_uint64(0))
    cuda("cuMemSetAccess", address, c_size_t(SHARED), struct.pack("iii", DEVICE, 0, READ_WRITE), c_size_t(1))
    return address.value


def handles(cuda: Cuda, gib: float, folder: Path) -> Look:
    hold(cuda, gib)
    handle, fd = c_uint64(), c_int()
    properties = create_string_buffer(struct.pack("iiiiP8x", PINNED, POSIX_FD, DEVICE, 0, 0))
    cuda("cuMemCreate", byref(handle), c_size_t(SHARED), properties, c_uint64(0))
    cuda("cuMemExportToShareableHandle", byref(fd), handle, POSIX_FD, c_uint64(0))
    mine, others = socket.socketpair()
    the_other(folder, "handles", others)
    socket.send_fds(mine, [b"x"], [fd.value])
    return _asks(mine, cuda, _mapped(cuda, handle))


def handles_other(cuda: Cuda, pipe: socket.socket) -> None:
    handle = c_uint64()
    _, (fd,), _, _ = socket.recv_fds(pipe, 1, 1)
    cuda("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), POSIX_FD)
    _answers(pipe, cuda, _mapped(cuda, handle))


# ---- by NCCL ----


def nccl(folder: Path, gib: float, rank: int) -> None:
    import torch
    import torch.distributed

    torch.cuda.set_device(rank)
    held = torch.arange(int(gib * 2**28), dtype=torch.int32, device="cuda")
    torch.distributed.init_process_group("nccl", f"file://{folder}/meet", rank=rank, world_size=RANKS)
    mine = folder / str(rank)
    mine.mkdir()

    def look(number: int) -> bool:
        """The next collective; then what it holds."""
        numbers = torch.full((1 << 20,), float(number + rank), device="cuda")
        torch.distributed.all_reduce(numbers)
        wanted = float(sum(number + each for each in range(RANKS)))
        return bool((numbers == wanted).all()) and int(held[-1]) == len(held) - 1

    os.symlink(folder / "ask", mine / "ask")
    serve(mine, look)


def main() -> None:
    folder, kind, gib = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    if kind == "nccl" and len(sys.argv) == 4:
        ranks = [subprocess.Popen([sys.executable, *sys.argv, str(rank)]) for rank in range(RANKS)]
        sys.exit(max(rank.wait() for rank in ranks))
    if kind == "nccl":
        nccl(folder, gib, int(sys.argv[4]))
    cuda = Cuda()
    if kind.endswith("-other"):
        pipe = socket.socket(fileno=os.dup(0))
        {"ipc-other": ipc_other, "handles-other": handles_other}[kind](cuda, pipe)
    else:
        serve(folder, {"alone": alone, "peer": peer, "ipc": ipc, "handles": handles}[kind](cuda, gib, folder))


main()
