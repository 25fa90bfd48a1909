"""Memory as a number of equal units, for clusters that only count devices (the device plugin API). Pure.

A unit is 256 MiB of one card, and a device by itself to the kubelet, with a name of its own. The kubelet picks which
ones a container gets, and asks first which we would prefer: all of one card, and of those that have enough the one
where least is left over. What is picked from two cards is refused, as it would be no quota of one card.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from scheduler.kubernetes.api.quantity import MIB
from scheduler.kubernetes.names import DRIVER
from web.errors import Problem

UNIT = 256 * MIB
RESOURCE = f"{DRIVER}/memory-256mib"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
_NAME = re.compile(r"(.+)-([0-9]+)")


def name(device: str, number: int) -> str:
    return f"{device}-{number}"


def units(cards: Mapping[str, tuple[int, int]], used: Collection[str] = ()) -> dict[str, str]:
    """Name → health. `cards`: device → bytes that may be promised at best, and now.

    What is missing of a card is taken from the units that nobody has, the last first.
    """
    found: dict[str, str] = {}
    for device, (most, now) in cards.items():
        all_ = [name(device, number) for number in range(most // UNIT)]
        missing = min(len(all_), -(-max(0, most - now) // UNIT))
        free_first = sorted(all_, key=lambda unit: (unit not in used, int(unit.rpartition("-")[2])), reverse=True)
        sick = set(free_first[:missing])
        found |= {unit: UNHEALTHY if unit in sick else HEALTHY for unit in all_}
    return found


def preferred(available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """Which the kubelet should take; nothing if no card has so many."""
    by_card = Counter(card_of(unit) for unit in available)
    wanted = {card_of(unit) for unit in must}
    fits = [card for card, count in by_card.items() if count >= size and wanted <= {card}]
    if not fits:
        return []
    card = min(fits, key=lambda card: (by_card[card], card))
    rest = sorted({unit for unit in available if card_of(unit) == card} - set(must), key=_number)
    return [*must, *rest][:size]


def allocated(ids: Sequence[str], known: Collection[str]) -> tuple[str, int]:
    """The device that these units are of, and how many bytes they are. Raises Problem."""
    if not ids or (unknown := [unit for unit in ids if unit not in known]):
        raise Problem("no_such_unit", f"This node has no unit {unknown[0] if ids else ''}.", 409)
    cards = {card_of(unit) for unit in ids}
    if len(cards) > 1:
        raise Problem(
            "several_cards",
            f"{len(ids)} units ({len(ids) * UNIT // MIB} MiB) are free on this node, but on no single card: the "
            f"kubelet took them from {len(cards)}. A container gets memory of one card here: ask for less.",
            409,
        )
    return cards.pop(), len(set(ids)) * UNIT


def card_of(unit: str) -> str:
    match = _NAME.fullmatch(unit)
    return match[1] if match else ""


def _number(unit: str) -> int:
    return int(unit.rpartition("-")[2])
