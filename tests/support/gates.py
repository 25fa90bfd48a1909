"""A scheduler for tests of the gate that has one rule: all come to the largest number that anybody has begun."""

import time
from collections import defaultdict
from collections.abc import Sequence

from shim.binding.gate import Entry, Gate
from tests.support.eventually import PATIENCE


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


def let_go(gates: Sequence[Gate]) -> None:
    for gate in gates:
        gate.let_go()
