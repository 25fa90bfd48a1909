"""The trainings of tests.gpu.ranked on real GPUs, each of them one rank's: RANK and MEETING stand in its environment.

MEETING: the folder where the ranks of one program meet. BATCH: how much there is to do in a step; with 1024 most are as
fast as their processor.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK, FOLDER = int(os.environ.get("RANK", "0")), Path(os.environ.get("MEETING", "."))
WIDTH, BATCH = 2048, int(os.environ.get("BATCH", "1024"))
Step = Callable[[], Any]  # what came of it: a tensor of one number


def _torch(eager: bool = False) -> Any:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(RANK)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda", RANK) if eager else None
    meeting = f"file://{FOLDER}/meeting"
    dist.init_process_group("nccl", init_method=meeting, rank=RANK, world_size=2, device_id=device)
    return torch


def _layers(torch: Any, count: int = 4) -> Any:
    parts = [each for _ in range(count) for each in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())]
    return torch.nn.Sequential(*parts).cuda()


def _training(torch: Any, model: Any) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(BATCH, WIDTH, device="cuda", generator=torch.Generator("cuda").manual_seed(10 + RANK))

    def step() -> Any:
        loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def ddp() -> Step:
    torch = _torch()
    return _training(torch, torch.nn.parallel.DistributedDataParallel(_layers(torch), [RANK], bucket_cap_mb=20))


def compiled() -> Step:
    torch = _torch()
    torch.use_deterministic_algorithms(False)
    model = torch.nn.parallel.DistributedDataParallel(_layers(torch, 2), [RANK], bucket_cap_mb=20)
    return _training(torch, torch.compile(model, mode="reduce-overhead"))


def fsdp() -> Step:
    torch = _torch()
    from torch.distributed.fsdp import fully_shard

    model = _layers(torch)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    return _training(torch, fully_shard(model))


def two() -> Step:
    """Tensor- and data-parallel: two communicators of the same ranks, split from one."""
    torch = _torch(eager=True)
    import torch.distributed as dist

    groups = dist.new_group([0, 1]), dist.new_group([0, 1])
    weight = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH
    value = torch.ones(BATCH, WIDTH, device="cuda")

    def step() -> Any:
        out = value
        for _ in range(4):
            out = torch.tanh(out @ weight)
            dist.all_reduce(out, group=groups[0])
        mean = out.mean()
        dist.all_reduce(weight, op=dist.ReduceOp.AVG, group=groups[1])
        return mean

    return step


def pipeline() -> Step:
    """The first sends four pieces on and waits for as many answers."""
    torch = _torch()
    import torch.distributed as dist

    weight = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH
    pieces = [torch.full((BATCH // 2, WIDTH), 1.0 + number, device="cuda") for number in range(4)]
    room = [torch.empty_like(piece) for piece in pieces]

    def step() -> Any:
        for piece, answer in zip(pieces, room, strict=True):
            if RANK == 0:
                dist.send(torch.tanh(piece @ weight), 1)
            else:
                dist.recv(answer, 0)
                dist.send(torch.tanh(answer @ weight), 0)
        if RANK == 0:
            for answer in room:
                dist.recv(answer, 1)
        return room[-1].sum()

    return step


def graphs() -> Step:
    """Collectives that were captured into a CUDA graph."""
    torch = _torch()
    import torch.distributed as dist

    weight = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH
    value = torch.ones(BATCH, WIDTH, device="cuda")
    out = torch.empty_like(value)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # what libraries make at their first call cannot be captured
        for _ in range(3):
            out.copy_(torch.tanh(value @ weight))
            dist.all_reduce(out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(3):
            out.copy_(torch.tanh(value @ weight))
            dist.all_reduce(out)

    def step() -> Any:
        graph.replay()
        return out.mean()

    return step


def jax() -> Step:
    """One process on both GPUs."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.1")
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(jax.devices(), ("x",))

    def body(value: Any, weight: Any) -> Any:
        for _ in range(3):
            value = jax.lax.pmean(jnp.tanh(value @ weight), "x")
        return value

    part = PartitionSpec("x")
    run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(part, PartitionSpec()), out_specs=part, check_vma=False))
    weight = jax.random.normal(jax.random.key(1), (WIDTH, WIDTH)) / WIDTH
    value = jnp.ones((2 * BATCH, WIDTH))
    return lambda: run(value, weight).mean()


def _cupy_communicator(name: str) -> Any:
    """Of both ranks, who meet by this name."""
    import ast

    from cupy.cuda import nccl

    meeting = FOLDER / name
    if RANK == 0:
        meeting.with_suffix(".new").write_text(repr(nccl.get_unique_id()))
        meeting.with_suffix(".new").rename(meeting)
    while not meeting.exists():
        time.sleep(0.01)
    return nccl.NcclCommunicator(2, ast.literal_eval(meeting.read_text()), RANK)


def abort() -> Step:
    """Each 30 steps, rank 0 begins a collective that its sibling never begins; then both abort, and meet anew."""
    import cupy
    from cupy.cuda import nccl

    cupy.cuda.Device(RANK).use()
    value = cupy.ones((BATCH, WIDTH), dtype=cupy.float32)
    weight = cupy.eye(WIDTH, dtype=cupy.float32) / 2
    steps, comm = 0, _cupy_communicator("id0")

    def step() -> Any:
        nonlocal steps, comm
        out, steps = value @ weight, steps + 1
        stream = cupy.cuda.get_current_stream().ptr
        if steps % 30 == 0:
            cupy.cuda.get_current_stream().synchronize()
            if RANK == 0:
                comm.allReduce(out.data.ptr, out.data.ptr, 1024, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)
            time.sleep(0.1)
            comm.abort()
            comm, out = _cupy_communicator(f"id{steps}"), value @ weight
        for _ in range(3):
            comm.allReduce(out.data.ptr, out.data.ptr, out.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)
        return out.mean()

    return step


def small() -> Step:
    """All-reduces of 4 KiB."""
    torch = _torch()
    import torch.distributed as dist

    value = torch.ones(1024, device="cuda")

    def step() -> Any:
        for _ in range(100):
            dist.all_reduce(value, op=dist.ReduceOp.AVG)
        return value.mean()

    return step


def gemm() -> Step:
    """One process, on one GPU."""
    import torch

    weight = torch.randn(2 * WIDTH, 2 * WIDTH, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    return lambda: (weight @ weight).mean()


PROGRAMS = {each.__name__: each for each in (ddp, compiled, fsdp, two, pipeline, graphs, jax, abort, small, gemm)}
