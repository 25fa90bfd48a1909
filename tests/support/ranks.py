"""Programs whose GPUs wait for each other: ranks of a communicator of the (simulated) NCCL.

first, second = (Rank(card, device=device) for device in range(2))
comms = join(first, second)                  # a communicator of both; each one's handle
first.reduce(comms[0])                       # given to the card, which waits for the other's
assert not first.done()
"""

import os
from typing import Any

from tests.support.card import Card
from tests.support.program import Program

FLOAT, SUM = 7, 0
NOT_READY = 600
IN_PROGRESS = 7


class Rank(Program):
    """A program with the primary context of its GPU current."""

    def __init__(self, card: Card, env: dict[str, str] | None = None, device: int = 0, **options: Any) -> None:
        super().__init__(card, env or {}, **options)
        self.device = device
        self.use(device)

    def reduce(self, comm: int, count: int = 1024, stream: int = 0) -> int:
        """Gives its part of an all-reduce; NCCL's result."""
        return self.result("ncclAllReduce", None, None, count, FLOAT, SUM, comm, stream)

    def start_reduce(self, comm: int, stream: int = 0) -> None:
        """The same, without waiting until the call has returned: `receive` has the outcome."""
        arguments = [None, None, 1024, FLOAT, SUM, comm, stream]
        self.send(do="call", name="ncclAllReduce", arguments=arguments, way="dlsym")

    def send_to(self, comm: int, peer: int) -> int:
        return self.result("ncclSend", None, 1024, FLOAT, peer, comm, 0)

    def receive_from(self, comm: int, peer: int) -> int:
        return self.result("ncclRecv", None, 1024, FLOAT, peer, comm, 0)

    def done(self) -> bool:
        """Whether its GPU has done all that it was given."""
        return self.result("cuStreamQuery", 0) != NOT_READY


def unique() -> str:
    return os.urandom(128).hex()


def join(*programs: Rank, name: str = "ncclCommInitRank", more: tuple[Any, ...] = ()) -> list[int]:
    """A new communicator of all of them, in this order; their handles."""
    identity = {"id": unique()}
    for rank, program in enumerate(programs):
        program.start_new(name, len(programs), identity, rank, *more)
    return [program.receive()["kept"][0] for program in programs]


def split(programs: dict[Rank, int], colors: list[int], name: str = "ncclCommSplit") -> list[int]:
    """Splits a communicator (program → its handle) by color, in the order of ranks; the new handles, 0 for none."""
    for (program, comm), color in zip(programs.items(), colors, strict=True):
        program.send(do="call", name=name, arguments=[comm, color, 0, {"out": 0}, None], way="dlsym")
    return [program.receive()["kept"][0] for program in programs]
