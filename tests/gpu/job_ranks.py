"""A training of two ranks on two GPUs, in one container: `job_ranks.py KIND FOLDER NAME [STEPS]`.

KIND: ddp, fsdp, two (tensor-parallel with two communicators); sim (on the simulated card, without PyTorch). It runs
ahead of its GPUs, and synchronises each EVERY steps; rank 0 then adds a line to FOLDER/NAME.done: time, steps, loss.
The same steps give the same losses, bit by bit, whatever becomes of it meanwhile. Without STEPS it goes on for ever.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
EVERY = 3
RANKS = 2

Step = Callable[[int], object]  # gives the GPU one step; its loss


def main() -> None:
    kind, folder, name, *limit = sys.argv[1:]
    if "RANK" not in os.environ:
        ranks = [subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"RANK": str(i)}) for i in range(RANKS)]
        sys.exit(max(abs(each.wait()) for each in ranks))
    rank = int(os.environ["RANK"])
    step, synchronize = (simulated if kind == "sim" else trained)(kind, rank, f"{folder}/{name}.store")
    count = 0
    with open(f"{folder}/{name}.done", "a") if rank == 0 else open(os.devnull, "a") as done:
        while not limit or count < int(limit[0]):
            for _ in range(EVERY):
                loss = step(count)
                count += 1
            synchronize()
            print(time.time(), count, float(loss), file=done, flush=True)


def trained(kind: str, rank: int, store: str) -> tuple[Step, Callable[[], object]]:
    import datetime

    import torch
    import torch.distributed as dist

    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=datetime.timedelta(minutes=5)
    )
    torch.manual_seed(1)
    size, layers = 1024, 12

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(size)
            self.wide, self.back = torch.nn.Linear(size, 4 * size), torch.nn.Linear(4 * size, size)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.back(torch.nn.functional.gelu(self.wide(self.norm(x))))

    draws = torch.Generator(device="cuda").manual_seed(7 + rank)
    if kind == "two":
        other = dist.new_group([0, 1])
        weights = [torch.randn(size, size, device="cuda") / size**0.5 for _ in range(layers)]

        def step(count: int) -> torch.Tensor:
            x = torch.randn(4096, size, device="cuda", generator=draws)
            for number, each in enumerate(weights):
                x = torch.tanh(x @ each)
                dist.all_reduce(x, group=other if number % 3 else None)
                x = x / RANKS
            for each in weights:
                each.add_(x[:size] * 1e-4)
            return x.square().mean()

        return step, torch.cuda.synchronize
    model: torch.nn.Module = torch.nn.Sequential(*(Block() for _ in range(layers))).cuda()
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=rank)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(count: int) -> torch.Tensor:
        x = torch.randn(4096, size, device="cuda", generator=draws)
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(x) - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train, torch.cuda.synchronize


def simulated(kind: str, rank: int, store: str) -> tuple[Step, Callable[[], object]]:
    import ctypes
    from hashlib import shake_128

    from tests.support.cuda import Cuda

    cuda, nccl, comm = Cuda(rank), ctypes.CDLL("libnccl.so.2"), ctypes.c_void_p()

    class Id(ctypes.Structure):
        _fields_ = (("bytes", ctypes.c_ubyte * 128),)

    identity = Id.from_buffer_copy(shake_128(store.encode()).digest(128))
    assert nccl.ncclCommInitRank(ctypes.byref(comm), RANKS, identity, rank) == 0

    def step(count: int) -> int:
        for _ in range(3):
            cuda.compute(5)
            assert nccl.ncclAllReduce(None, None, ctypes.c_size_t(1 << 18), 7, 0, comm, None) == 0
        return count

    return step, lambda: cuda("cuCtxSynchronize")


if __name__ == "__main__":
    main()
