"""A training of two ranks on two GPUs, in one container: `job_ranks.py KIND FOLDER NAME`.

KIND: a program of shim/gate_programs.py; sim, sim-abort or sim-alone (two ranks, or one process, on the simulated
card). Each EVERY steps it synchronises its GPUs, and rank 0 adds a line to FOLDER/NAME.done: time, steps, loss. The
same steps give the same losses, bit by bit. It goes on to the number of steps that is in FOLDER/NAME.until, and waits
there for a higher one; for ever, if there is no such file.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

EVERY = 3

Step = Callable[[], object]  # gives the GPU one step; its loss


def main() -> None:
    kind, folder, name = sys.argv[1:4]
    if cpus := os.environ.get("CPUS", ""):
        os.sched_setaffinity(0, map(int, cpus.split()))
    until, meeting = Path(folder, f"{name}.until"), Path(folder, f"{name}.meeting")
    if "RANK" not in os.environ:
        meeting.mkdir()
        ranks = [
            subprocess.Popen(
                [sys.executable, *sys.argv], env=os.environ | {"RANK": str(rank), "MEETING": str(meeting)}
            )
            for rank in range(1 if kind in ("sim-alone", "jax", "gemm") else 2)
        ]  # fmt: skip
        sys.exit(max(abs(each.wait()) for each in ranks))
    rank, count = int(os.environ["RANK"]), 0
    cores, all_cores = int(os.environ.get("CORES", "0")), sorted(os.sched_getaffinity(0))
    if cores and (rank + 1) * cores <= len(all_cores):  # so many of its own, and the same of what it is compared with
        os.sched_setaffinity(0, all_cores[rank * cores : (rank + 1) * cores])
    step, synchronize = simulated(kind, rank, str(meeting)) if kind.startswith("sim") else real(kind)
    with open(f"{folder}/{name}.done" if rank == 0 else os.devnull, "a") as done:
        while True:
            while until.exists() and count >= int(until.read_text()):
                time.sleep(0.05)  # shorter ones would look like computing
            for _ in range(EVERY):
                loss = step()
            count += EVERY
            synchronize()
            print(time.time(), count, float(loss), file=done, flush=True)  # type: ignore[arg-type]


def real(kind: str) -> tuple[Step, Callable[[], object]]:
    step: Step = import_module("tests.gpu.shim.gate_programs").PROGRAMS[kind]()
    torch = sys.modules.get("torch")
    return step, torch.cuda.synchronize if torch is not None else lambda: None


def simulated(kind: str, rank: int, unique: str) -> tuple[Step, Callable[[], object]]:
    import ctypes
    from hashlib import shake_128

    from tests.support.cuda import Cuda

    cuda, nccl, comm = Cuda(rank), ctypes.CDLL("libnccl.so.2"), ctypes.c_void_p()

    class Id(ctypes.Structure):
        _fields_ = (("bytes", ctypes.c_ubyte * 128),)

    def meet(name: str) -> None:
        identity = Id.from_buffer_copy(shake_128(name.encode()).digest(128))
        assert nccl.ncclCommInitRank(ctypes.byref(comm), 2, identity, rank) == 0

    def reduce() -> None:
        assert nccl.ncclAllReduce(None, None, ctypes.c_size_t(1 << 18), 7, 0, comm, None) == 0

    steps = 0
    if kind != "sim-alone":
        meet(unique)

    def step() -> int:
        nonlocal steps
        steps += 1
        if kind == "sim-abort" and steps % 30 == 0:
            cuda("cuCtxSynchronize")
            if rank == 0:
                reduce()
            time.sleep(0.1)
            assert nccl.ncclCommAbort(comm) == 0
            meet(f"{unique} {steps}")
        for _ in range(3):
            cuda.compute(5)
            if kind != "sim-alone":
                reduce()
        return 0

    return step, lambda: cuda("cuCtxSynchronize")


if __name__ == "__main__":
    main()
