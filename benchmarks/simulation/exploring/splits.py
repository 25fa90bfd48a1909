"""Every split of the cards, and every single step from it: a proof by induction where runs are too many to follow.

`explorer.py` follows whole runs, queues and all; with four containers these are soon too many. But whether somebody can
be stuck rests on the *split* alone: who has which quota, who holds how much of what, and who is paused. There are few
enough of these to take them all, reachable or not, and to show of each with the real arbiter:

1. *What is certain stays certain.* Whoever is completable (while the paused stay paused; once they are resumed; once
   foreign memory is gone) still is after every grant that the arbiter makes, every change of quota that it admits, and
   every byte that comes back.
   So from an empty card on, by induction over any run whatever: until somebody is paused, everybody is completable.
2. *Nobody is stuck.* Of the completable containers that hold memory, there is one whose every possible call would be
   granted: it runs, or is served, whatever else waits and in whatever order, because no policy leaves out a call of a
   container that holds memory (`core/policies.py`). If none of them holds any, every call of each would be granted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from benchmarks.simulation.exploring.explorer import Broken
from benchmarks.simulation.exploring.keys import NOW, STILL, Host, build
from scheduler.core import safety
from scheduler.core.arbiter import handle
from scheduler.core.changes import lend
from scheduler.core.effects import Admitted, Granted
from scheduler.core.events import Needed, QuotaChanged
from scheduler.core.state import Container, State

# One container's part: quota and lease by GPU, paused.
Part = tuple[tuple[int, ...], tuple[int, ...], bool]


@dataclass(frozen=True, slots=True)
class Cards:
    """What is split. `containers` share `gpus` GPUs of `capacity` units each."""

    containers: int
    capacity: int
    gpus: int = 1
    pauses: bool = False
    foreign: bool = False  # any amount of what is not held

    def parts(self) -> list[Part]:
        """All that one container can be."""
        one = [(quota, leased) for quota in range(self.capacity + 1) for leased in range(quota + 1)]
        return [
            (tuple(quota for quota, _ in each), tuple(leased for _, leased in each), paused)
            for each in product(one, repeat=self.gpus)
            if any(quota for quota, _ in each)
            for paused in ((False, True) if self.pauses else (False,))
        ]


def check(cards: Cards, first: int) -> tuple[int, int]:
    """Checks all splits whose first part is number `first` of `cards.parts()`; raises Broken.

    Returns how many splits and how many steps from them. Containers that differ in name only, and GPUs, are one.
    """
    splits = steps = 0
    for split in _splits(cards, first):
        splits += 1
        steps += _check(cards, split)
    return splits, steps


def _splits(cards: Cards, first: int) -> Iterator[tuple[Part, ...]]:
    parts = cards.parts()

    def more(chosen: tuple[Part, ...], start: int, room: tuple[int, ...]) -> Iterator[tuple[Part, ...]]:
        if len(chosen) == cards.containers:
            yield chosen
            return
        for place in range(start, len(parts) if chosen else start + 1):
            left = tuple(free - leased for free, leased in zip(room, parts[place][1], strict=True))
            if min(left) >= 0:
                yield from more((*chosen, parts[place]), place, left)

    for split in more((), first, (cards.capacity,) * cards.gpus):
        mirrored = tuple(sorted((quota[::-1], leased[::-1], paused) for quota, leased, paused in split))
        if cards.gpus == 1 or tuple(sorted(split)) <= mirrored:
            yield split


def _check(cards: Cards, split: tuple[Part, ...]) -> int:
    held = [sum(leased[gpu] for _, leased, _ in split) for gpu in range(cards.gpus)]
    levels = [range(least if cards.foreign else cards.capacity, cards.capacity + 1) for least in held]
    return sum(_check_at(cards, split, capacities) for capacities in product(*levels))


def _check_at(cards: Cards, split: tuple[Part, ...], capacities: tuple[int, ...]) -> int:
    none = (0,) * cards.gpus
    parts = tuple((quota, leased, none, paused, STILL, (), 0, none) for quota, leased, paused in split)
    state = build(Host(cards.capacity, tuple(quota for quota, _, _ in split), "fifo"), (capacities, parts))
    certain = _certain(cards, state)
    steps = 0
    served = set()  # those whose every call is granted
    for session, container in enumerate(state.containers.values()):
        calls = list(_calls(state, session, container))
        if all(after for _, after in calls):
            served.add(container.id)
        for step, after in (*calls, *_returns(state, session, container), *_quotas(cards, state, container)):
            steps += 1
            if after:
                for before, then in zip(certain, _certain(cards, after), strict=True):
                    if not before <= then:
                        raise Broken(f"{split} on {capacities}: after {step}, {sorted(before - then)} may never end")
    sure = certain[0]
    holders = {name for name in sure if safety.holds(state.containers[name])}
    if not (holders & served if holders else sure <= served):
        raise Broken(f"{split} on {capacities}: {sorted(sure)} could end, but may wait for ever")
    return steps


def _certain(cards: Cards, state: State) -> list[set[str]]:
    """Who can end while the paused stay paused, who once they are resumed; the same once foreign memory is gone."""
    resumed, gone = (False, True) if cards.pauses else (False,), (False, True) if cards.foreign else (False,)
    return [
        safety.completable(state, state.gpus, resumed=each, undisturbed=undisturbed)
        for undisturbed in gone
        for each in resumed
    ]


def _calls(state: State, session: int, container: Container) -> Iterator[tuple[str, State | None]]:
    """Every call that it could make with all of its lease in use; None where the arbiter grants nothing."""
    for gpu, quota in container.quota.items() if not container.paused else ():
        for amount in range(1, quota - container.leased.get(gpu, 0) + 1):
            after, (effect, *_) = handle(state, Needed(NOW, session, 0, gpu, amount))
            granted = isinstance(effect, Granted)
            yield f"{container.id} is granted {amount} of {gpu} and more", after if granted else None
            if granted:  # nothing more is lent while others wait
                yield f"{container.id} is granted {amount} of {gpu}", lend(state, session, gpu, amount)


def _returns(state: State, session: int, container: Container) -> Iterator[tuple[str, State]]:
    """One unit comes back; more, and ends, are the same several times."""
    for gpu in container.leased:
        yield f"{container.id} gives back 1 of {gpu}", lend(state, session, gpu, -1)


def _quotas(cards: Cards, state: State, container: Container) -> Iterator[tuple[str, State | None]]:
    for gpu, quota in container.quota.items():
        for to in range(1, cards.capacity + 1):
            if to != quota:
                after, effects = handle(state, QuotaChanged(NOW, container.id, {**container.quota, gpu: to}))
                admitted = Admitted(container.id) in effects
                yield f"{container.id} has quota {to} of {gpu}", after if admitted else None
