"""A training's rank on the simulated card: `python -m tests.support.training`, one process each.

Each step gives the GPU kernels and all-reduces, as DDP's buckets do. It runs ahead of the GPU like a real one: it
synchronises every few steps. It says "ready" once its communicator is made, then the number of its steps each time.
"""

import argparse
import ctypes
from ctypes import byref, c_int, c_size_t, c_void_p

from tests.support.cuda import Cuda

FLOAT, SUM = 7, 0


class Id(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 128),)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--unique", required=True, help="128 bytes, hexadecimal: the same of all ranks")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--buckets", type=int, default=3, help="all-reduces of a step")
    parser.add_argument("--kernel-ms", type=float, default=5, help="computing before each of them")
    parser.add_argument("--sync-every", type=int, default=5, help="steps")
    parser.add_argument("--steps", type=int, default=0, help="0: without end")
    options = parser.parse_args()

    cuda = Cuda(options.device)
    nccl = ctypes.CDLL("libnccl.so.2")
    comm = c_void_p()
    identity = Id.from_buffer_copy(bytes.fromhex(options.unique))
    assert nccl.ncclCommInitRank(byref(comm), options.ranks, identity, options.rank) == 0
    print("ready", flush=True)
    step = 0
    while not options.steps or step < options.steps:
        for _ in range(options.buckets):
            cuda.compute(options.kernel_ms)
            assert nccl.ncclAllReduce(None, None, c_size_t(1 << 18), c_int(FLOAT), c_int(SUM), comm, None) == 0
        step += 1
        if step % options.sync_every == 0:
            cuda("cuCtxSynchronize")
            print(step, flush=True)
    cuda("cuCtxSynchronize")
    assert nccl.ncclCommDestroy(comm) == 0


if __name__ == "__main__":
    main()
