"""Which columns of a table fit, and how wide each is. All widths are in cells of the terminal."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from appliance.cli.text import width

GAP = 2


class Wish(NamedTuple):
    """`least`: how narrow a column of text may become; others stay whole. `first_to_go`: those that may be left out."""

    least: Mapping[str, int]
    first_to_go: Sequence[str]


CONTAINERS = Wish(
    {"NAME": 16, "STATE": 16, "OWNER": 8, "IMAGE": 12, "NAMESPACE": 10, "NODE": 8},
    ("ID", "IMAGE", "GPU", ">PEAK", "NODE", "NAMESPACE", "AGE", "OWNER"),
)
QUEUE = Wish({"NAME": 16, "WHY": 20, "OWNER": 8, "SINCE": 10}, ("OWNER", "SINCE", ">#"))


def fitted(heads: Sequence[str], rows: Sequence[Sequence[str]], room: int, wish: Wish) -> dict[int, int]:
    """Column → its width, of those that are shown. What is left over goes to those that are cut, from the left."""
    wanted = [max(width(head.lstrip(">")), *(width(row[at]) for row in rows), 0) for at, head in enumerate(heads)]
    given = [min(full, wish.least.get(head, full)) for head, full in zip(heads, wanted, strict=True)]
    shown = list(range(len(heads)))

    def spare() -> int:
        return room - sum(given[at] for at in shown) - GAP * (len(shown) - 1)

    for head in wish.first_to_go:
        if spare() >= 0:
            break
        shown = [at for at in shown if heads[at] != head]
    for at in shown:
        given[at] += max(0, min(spare(), wanted[at] - given[at]))
    return {at: given[at] for at in shown}
