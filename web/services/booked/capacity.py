"""Whether a reservation fits: at no moment is more of a GPU reserved than it has. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple


class Taken(NamedTuple):
    """Bytes of a GPU from one time to another. `by`: who, for people. Reserved for `people`, or held by `owner`."""

    begins: datetime
    ends: datetime
    bytes: int
    by: str = ""
    people: frozenset[str] | None = None
    owner: str = ""


def worst(taken: Iterable[Taken], begins: datetime, ends: datetime) -> tuple[int, list[Taken]]:
    """The most bytes that are taken at one moment of [begins, ends), and by which of these."""
    near = [each for each in taken if each.begins < ends and each.ends > begins]
    moments = {begins, *(each.begins for each in near if each.begins > begins)}  # it grows at a begin and nowhere else
    sums = {at: [each for each in near if each.begins <= at < each.ends] for at in moments}
    at = max(sorted(moments), key=lambda at: together(sums[at]))
    return together(sums[at]), sums[at]


def together(taken: Iterable[Taken]) -> int:
    """Bytes that are held, and what of each reservation its people do not hold: as the core reckons what is kept
    (scheduler/core/reserved), the one of the fewest people first."""
    held, reserved = list[tuple[str, int]](), list[tuple[frozenset[str], int]]()
    for each in taken:
        if each.people is None:
            held.append((each.owner, each.bytes))
        else:
            reserved.append((each.people, each.bytes))
    total = sum(amount for _, amount in held)
    for people, left in sorted(reserved, key=lambda each: len(each[0])):
        for place, (owner, amount) in enumerate(held):
            if owner in people and (drawn := min(left, amount)):
                held[place] = owner, amount - drawn
                left -= drawn
        total += left
    return total
