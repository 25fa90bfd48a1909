"""How a card is declared to a Swarm: one kind of generic resource a card, `gpu0_mib`, in MiB.

A kind counts per node, so it is card 0 of whichever node. It has no hyphen: a program finds what it has reserved
by the environment variable DOCKER_RESOURCE_GPU0_MIB, and a hyphen can stand in none. Its value has to be a plain
number. Whatever Docker cannot read as one it takes, without a word, for the name of a single thing (seen with 20.10:
`gpu0_mib=4GiB`); a reservation of a number then never fits, and nothing says why.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

MIB = 1 << 20
_KIND = re.compile(r"gpu(\d+)_mib")


def kind_of(card: int) -> str:
    return f"gpu{card}_mib"


def units(size: int) -> int:
    """Of a reservation of so many bytes: rounded up, so that reservations never promise more than there is."""
    return -(-size // MIB)


def reservation(cards: Mapping[int, int]) -> list[dict[str, Any]]:
    """Swarm's GenericResources. `cards`: bytes by the number of the card."""
    return [{"DiscreteResourceSpec": {"Kind": kind_of(card), "Value": units(size)}} for card, size in cards.items()]


def read(resources: list[Mapping[str, Any]] | None) -> dict[int, int]:
    """The other way: bytes by the number of the card. Kinds of others are left out, as is what is no number."""
    found = {}
    for each in resources or ():
        discrete = each.get("DiscreteResourceSpec") or {}
        if match := _KIND.fullmatch(discrete.get("Kind", "")):
            found[int(match[1])] = int(discrete.get("Value") or 0) * MIB
    return found


def misread(resources: list[Mapping[str, Any]] | None) -> list[str]:
    """Kinds of ours whose value Docker took for a name."""
    named = [each.get("NamedResourceSpec") or {} for each in resources or ()]
    return sorted({each["Kind"] for each in named if _KIND.fullmatch(each.get("Kind", ""))})


def lines(cards: Mapping[int, int]) -> str:
    """For /etc/docker/daemon.json. `cards`: bytes that containers may hold together, by the number of the card."""
    declared = [f"{kind_of(card)}={size // MIB}" for card, size in sorted(cards.items())]
    return json.dumps({"node-generic-resources": declared})
