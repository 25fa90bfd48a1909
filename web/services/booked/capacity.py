"""Whether a reservation fits: at no moment is more of a GPU reserved than it has. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple


class Taken(NamedTuple):
    """Bytes of a GPU from one time to another. `by`: who, for people."""

    begins: datetime
    ends: datetime
    bytes: int
    by: str = ""


def worst(taken: Iterable[Taken], begins: datetime, ends: datetime) -> tuple[int, list[Taken]]:
    """The most bytes that are taken at one moment of [begins, ends), and by which of these."""
    near = [each for each in taken if each.begins < ends and each.ends > begins]
    moments = {begins, *(each.begins for each in near if each.begins > begins)}  # it grows at a begin and nowhere else
    sums = {at: [each for each in near if each.begins <= at < each.ends] for at in moments}
    at = max(sorted(moments), key=lambda at: sum(each.bytes for each in sums[at]))
    return sum(each.bytes for each in sums[at]), sums[at]
