"""One program that uses several GPUs: `python -m tests.gpu.shim.several_programs FOLDER NAME BYTES UUID… [beyond]`.

BYTES: what each card has to give; the UUIDs: of the host's first two GPUs, whichever of them this program may use.
What it tells is as in frameworks.py; "beyond …" are lines that it gives under a quota only. Those without a framework
make the driver's own calls, so that the simulated card can run them.
"""

import functools
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tests.gpu.shim.frameworks import PATIENCE, mark, say, wait_at_mark
from tests.support.cuda import MIB, OUT_OF_MEMORY, Cuda, Failed, byref, c_int, c_void_p, create_string_buffer

GPUS = range(2)


class Card:
    """One of the GPUs that CUDA shows this process, with its primary context."""

    def __init__(self, number: int) -> None:
        self._cuda, self._context = Cuda(None), c_void_p()
        self._cuda("cuDevicePrimaryCtxRetain", byref(self._context), number)
        found = create_string_buffer(16)
        self._cuda("cuDeviceGetUuid", found, number)
        self.uuid = f"GPU-{found.raw.hex()}"
        self._held: list[int] = []

    def take(self, size: int) -> str:
        """Holds so much more, and what was read back from its end. Raises Failed."""
        self._cuda("cuCtxSetCurrent", self._context)
        address = self._cuda.alloc(size)
        self._held.append(address)
        self._cuda.write(address + size - 8, size.to_bytes(8, "little"))
        return str(int.from_bytes(self._cuda.read(address + size - 8, 8), "little"))

    def fill(self) -> int:
        """Takes until the driver refuses; its code."""
        try:
            while True:
                self.take(64 * MIB)
        except Failed as refused:
            return refused.code

    def empty(self) -> None:
        self._cuda("cuCtxSetCurrent", self._context)
        while self._held:
            self._cuda.free(self._held.pop())


def which(card: Card) -> int:
    """The GPU's place among the UUIDs that this program was given."""
    return [uuid.replace("-", "") for uuid in sys.argv[4:6]].index(card.uuid.replace("-", ""))


def visible() -> int:
    count = c_int()
    Cuda(None)("cuDeviceGetCount", byref(count))
    return count.value


class Child:
    """A process of this program's: `work(pipe, *arguments)`, begun by "fork" or "spawn"."""

    def __init__(self, way: str, work: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context(way)
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, *arguments), daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        theirs.close()

    def hear(self) -> Any:
        assert self.pipe.poll(PATIENCE), "a child says nothing"
        return self.pipe.recv()

    def end(self) -> None:
        self.pipe.send("end")
        self._process.join(PATIENCE)
        assert self._process.exitcode == 0, f"a child ended with {self._process.exitcode}"


# ---- the driver's own calls ----


def both() -> None:
    """One process on both GPUs: out of memory on one of them is nothing to the other."""
    cards = [Card(number) for number in GPUS]
    taken = [card.take(512 * MIB * (1 + number)) for number, card in enumerate(cards)]
    mark(f"{visible()} GPUs, {[which(card) for card in cards]}, {taken}")
    if sys.argv[-1] == "beyond":
        for full, other in ((0, 1), (1, 0)):
            code = cards[full].fill()
            cards[other].empty()
            other_goes_on = cards[other].take(256 * MIB) == str(256 * MIB)
            said = "out of memory" if code == OUT_OF_MEMORY else f"error {code}"
            say(f"beyond GPU {full}: {said}; GPU {other} {'goes on' if other_goes_on else 'is WRONG'}")
            cards[full].empty()
    for card in cards:
        card.empty()
    mark([card.take(128 * MIB) for card in cards])


def _take_on(pipe: Connection, choice: str, sizes: list[int]) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = choice  # the driver reads it when it is initialised
    try:
        cards = [Card(number) for number in range(len(sizes))]
        taken = [card.take(size * MIB) for card, size in zip(cards, sizes, strict=True)]
        pipe.send(f"{visible()} GPUs, {[which(card) for card in cards]}, {taken}")
    except Failed as refused:
        pipe.send(str(refused))
    pipe.recv()


def chosen() -> None:
    """Processes that choose their GPUs by themselves."""
    second = sys.argv[5]
    choices = [("1", [256]), ("1,0", [512, 1024]), (second, [384])]
    children = [Child("spawn", _take_on, choice, sizes) for choice, sizes in choices]
    mark("; ".join(child.hear() for child in children))
    for child in children:
        child.end()


def second() -> None:
    """A container with the second GPU only."""
    card = Card(0)
    mark(f"{visible()} GPU, {which(card)}, {card.take(512 * MIB)}")
    if sys.argv[-1] == "beyond":
        child = Child("spawn", _take_on, sys.argv[4], [64])
        answer = child.hear()
        child.end()
        say(f"beyond {'it gets the other GPU: ' + answer if 'GPUs' in answer else 'nothing on the other GPU'}")


def crossing(first: int, then: int) -> None:
    """Two of these, each the other way round, would wait for each other for ever if both were let in."""
    size = int(sys.argv[3]) * 2 // 5
    mark(Card(first).take(size))
    mark(Card(then).take(size))


# ---- PyTorch ----


def _rank(rank: int) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.use_deterministic_algorithms(True)
    torch.cuda.set_device(rank)
    meeting = f"file://{sys.argv[1]}/meeting"
    dist.init_process_group("nccl", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=40))
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers.cuda(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(10 + rank)
    data = torch.randn(64, 256).cuda(rank)
    losses = []
    for _ in range(5):
        loss = (model(data) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(f"{mean.item() / 2:.5e}")
    held = torch.ones((1 + rank) * 256 * MIB, dtype=torch.uint8, device=f"cuda:{rank}")
    dist.barrier(device_ids=[rank])
    torch.cuda.synchronize()
    if rank == 0:
        mark(" ".join(losses))
    else:
        wait_at_mark(1)
    del held
    dist.destroy_process_group()


def training() -> None:
    """DistributedDataParallel over NCCL, a process for each GPU."""
    import torch.multiprocessing

    torch.multiprocessing.spawn(_rank, nprocs=2)


def _leaf(pipe: Connection, gpu: int) -> None:
    import torch

    torch.cuda.set_device(gpu)
    own = torch.full((64 * MIB,), gpu + 1, dtype=torch.uint8, device=f"cuda:{gpu}")
    theirs = pipe.recv()  # the parent's memory, by CUDA IPC
    pipe.send((own.max().item(), str(theirs.device), theirs.min().item(), theirs.max().item()))
    pipe.recv()
    del theirs


def tree() -> None:
    """As MPI starts them: a parent with four children, two on each GPU, which read its memory."""
    import torch
    import torch.multiprocessing  # teaches pipes to send tensors

    children = [(gpu, Child("fork", _leaf, gpu)) for gpu in GPUS]  # this one has not touched CUDA yet
    children += [(gpu, Child("spawn", _leaf, gpu)) for gpu in GPUS]
    tensors = [torch.full((512 * MIB,), 3 + gpu, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in GPUS]
    for gpu in GPUS:
        torch.cuda.synchronize(gpu)
    for gpu, child in children:
        child.pipe.send(tensors[gpu])
    mark([child.hear() for _, child in children])
    for _, child in children:
        child.end()


def peer() -> None:
    """From one GPU to the other and back."""
    import torch

    here = torch.arange(64 * MIB, dtype=torch.int32, device="cuda:0")
    there = here.to("cuda:1")
    back = (there + 1).to("cuda:0")
    same = torch.equal(there.cpu(), here.cpu()) and bool((back - here == 1).all().item())
    mark(f"peers: {torch.cuda.can_device_access_peer(0, 1)}, right: {same}, {there.sum(dtype=torch.int64).item()}")


PROGRAMS: dict[str, Callable[[], None]] = {
    "both": both,
    "chosen": chosen,
    "second": second,
    "DDP": training,
    "DDP NCCL_CUMEM_ENABLE=1": training,
    "DDP NCCL_CUMEM_ENABLE=0": training,
    "tree": tree,
    "peer": peer,
    "crossing, first": functools.partial(crossing, 0, 1),
    "crossing, then": functools.partial(crossing, 1, 0),
}


if __name__ == "__main__":
    PROGRAMS[sys.argv[2]]()
    say("end")
