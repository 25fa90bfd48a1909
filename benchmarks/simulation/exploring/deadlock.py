"""The shortest way into the deadlock of the paper's rules taken literally, found by trying every order of events."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from random import Random

from benchmarks.simulation.literal import RULES, assign


@dataclass(frozen=True, slots=True)
class _Moment:
    """`waiting`: (container, units missing) in order of arrival. Containers are numbered; each has one quota."""

    waiting: tuple[tuple[int, int], ...]
    running: frozenset[int]
    arrived: frozenset[int]
    free: int


def shortest(policy: str, capacity: int, containers: int) -> list[str] | None:
    """The fewest events after which everybody waits and nobody runs, over all quotas; None if there is no such way.

    `paper-random` is given every lot that can fall.
    """
    ways = [
        way
        for quotas in combinations_with_replacement(range(1, capacity + 1), containers)
        if (way := _shortest(policy, capacity, quotas))
    ]
    return min(ways, key=len, default=None)


def _shortest(policy: str, capacity: int, quotas: Sequence[int]) -> list[str] | None:
    start = _Moment((), frozenset(), frozenset(), capacity)
    seen = {start}
    frontier: deque[tuple[_Moment, list[str]]] = deque([(start, [])])
    while frontier:
        moment, way = frontier.popleft()
        if moment.waiting and not moment.running and not moment.free:
            return [f"capacity {capacity}, quotas {_named(dict(enumerate(quotas)))}", *way]
        for after, step in _next(policy, moment, quotas):
            if after not in seen:
                seen.add(after)
                frontier.append((after, [*way, f"{step}; {_describe(after, quotas)}"]))
    return None


def _next(policy: str, moment: _Moment, quotas: Sequence[int]) -> Iterator[tuple[_Moment, str]]:
    lots = range(len(quotas)) if policy == "paper-random" else [0]
    for seed in lots:
        for container, quota in enumerate(quotas):
            if container not in moment.arrived:
                yield (
                    _after(policy, moment, quotas, seed, arrives=container),
                    f"{_name(container)} starts, needs {quota}",
                )
            elif container in moment.running:
                yield _after(policy, moment, quotas, seed, ends=container), f"{_name(container)} ends"


def _after(
    policy: str, moment: _Moment, quotas: Sequence[int], seed: int, arrives: int | None = None, ends: int | None = None
) -> _Moment:
    waiting, running, free = dict(moment.waiting), set(moment.running), moment.free
    if arrives is not None:
        waiting[arrives] = quotas[arrives]
    if ends is not None:
        running.remove(ends)
        free += quotas[ends]
    free, ready = assign(RULES[policy], waiting, free, Random(seed), first=arrives)
    arrived = moment.arrived | ({arrives} if arrives is not None else set())
    return _Moment(tuple(waiting.items()), frozenset(running | set(ready)), arrived, free)


def _describe(moment: _Moment, quotas: Sequence[int]) -> str:
    holding = {container: quotas[container] - missing for container, missing in moment.waiting}
    running = ", ".join(_name(container) for container in sorted(moment.running)) or "nobody"
    return f"running: {running}; waiting and holding: {_named(holding) or 'nobody'}; free: {moment.free}"


def _named(amounts: dict[int, int]) -> str:
    return ", ".join(f"{_name(container)}={amount}" for container, amount in amounts.items())


def _name(container: int) -> str:
    return "ABCDEFGH"[container]
