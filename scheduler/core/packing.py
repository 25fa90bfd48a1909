"""Which of several waiting calls to serve together, so that little of the card stays empty."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

# How many combinations are looked at before the best so far is taken. More finds little; it bounds a decision's time.
EFFORT = 256

# How much empty memory spoils a choice: a card left empty altogether would be worth e^-EMPTINESS of a full one.
EMPTINESS = 3.0


@dataclass(frozen=True, slots=True)
class Item:
    """`size` in bytes; `value` is what serving it is worth; `index` is the caller's."""

    size: int
    value: float
    index: int


def best(items: Sequence[Item], room: int, capacity: int) -> list[Item]:
    """The items that fit `room` together and are worth most; all of `items` fit it alone.

    Items of one size are taken by value. What is compared is Σ value × e^(−EMPTINESS × left / capacity), over the
    greedy choice by value per byte and the combinations found largest first, as many as EFFORT allows.
    """
    ranked = sorted(items, key=lambda item: item.value / item.size, reverse=True)
    sizes: dict[int, list[Item]] = {}
    for item in ranked:
        sizes.setdefault(item.size, []).append(item)
    groups = [sizes[size] for size in sorted(sizes, reverse=True)]

    def worth(choice: list[Item]) -> float:
        left = room - sum(item.size for item in choice)
        return sum(item.value for item in choice) * exp(-EMPTINESS * left / capacity)

    choice = _greedy(ranked, room)
    most = worth(choice)
    for _, other in zip(range(EFFORT), _combinations(groups, room), strict=False):
        if (value := worth(other)) > most:
            choice, most = other, value
    return choice


def _greedy(ranked: Sequence[Item], room: int) -> list[Item]:
    chosen = []
    for item in ranked:
        if item.size <= room:
            room -= item.size
            chosen.append(item)
    return chosen


def _combinations(groups: Sequence[list[Item]], room: int) -> Iterator[list[Item]]:
    """How many of each group: most of the first group first; of the last group always as many as fit."""
    group, *others = groups
    most = min(len(group), room // group[0].size)
    if not others:
        yield group[:most]
        return
    for count in range(most, -1, -1):
        for rest in _combinations(others, room - count * group[0].size):
            yield group[:count] + rest
