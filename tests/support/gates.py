"""A scheduler for tests of the gate that has one rule: all come to the largest number that anybody has begun."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shim.binding.gate import SILENCE, Entry, Gate, Kind
from tests.support.eventually import PATIENCE
from tests.support.ranks import Rank


def look(gates: Sequence[Gate]) -> list[tuple[Gate, Entry]]:
    return [(gate, entry) for gate in gates for entry in gate.entries() if not entry.left]


def stop(gates: Sequence[Gate], within: float = PATIENCE) -> bool:
    """Shuts the gates and brings all ranks to one number in each channel. False: not in time; they stay shut."""
    deadline = time.monotonic() + within
    raised = True
    while time.monotonic() < deadline:
        if raised:
            for gate in gates:
                gate.ask()
        ends = look(gates)
        most: dict[tuple[int, int, int], int] = defaultdict(int)
        behind = {id(gate) for gate, entry in ends if entry.begun < entry.limit}
        for gate, entry in ends:
            needed = entry.wanted if entry.held and id(gate) in behind else 0
            most[entry.channel] = max(most[entry.channel], entry.begun, entry.limit, needed)
        raised = False
        for gate, entry in ends:
            if entry.limit < most[entry.channel]:
                gate.limit(entry, most[entry.channel])
                raised = True
        if not raised and all(entry.given == entry.begun == entry.limit for _, entry in ends):
            return True
        time.sleep(0.001)
    return False


@contextmanager
def asking(*gates: Gate) -> Iterator[None]:
    """Shuts the gates and asks again in time, however slow the test is; opens them at the end."""
    left = threading.Event()

    def ask() -> None:
        while not left.wait(SILENCE / 20):
            for gate in gates:
                gate.ask()
        let_go(gates)  # at once: a gate that is not asked for SILENCE lets its program pass

    for gate in gates:
        gate.ask()
    asks = threading.Thread(target=ask)
    asks.start()
    try:
        yield
    finally:
        left.set()
        asks.join()


def let_go(gates: Sequence[Gate]) -> None:
    for gate in gates:
        gate.let_go()


def only(gate: Gate, kind: Kind = Kind.COLLECTIVE) -> Entry:
    (found,) = [entry for entry in gate.entries() if entry.kind is kind and not entry.left]
    return found


def counts(gate: Gate, kind: Kind = Kind.COLLECTIVE) -> tuple[int, int]:
    return only(gate, kind).begun, only(gate, kind).given


def captured(program: Rank, comm: int, times: int = 1) -> int:
    stream = program.new("cuStreamCreate", 1)
    program("cuStreamBeginCapture_v2", stream, 2)
    for _ in range(times):
        assert program.reduce(comm, stream=stream) == 0
    return program("cuStreamEndCapture", stream, {"out": 0})[0]
