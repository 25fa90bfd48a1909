"""The options of a volume by which a placer's container finds its record (scheduler/engines/swarm/service.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from web.errors import Problem

CONTAINER = "container"
KEY = "key"


@dataclass(frozen=True, slots=True)
class PlacementTicket:
    """`quota`: bytes on each of the cards, which are numbers of this host's GPUs.

    `key`: shows that the placer has given it to this host, which alone gets the options.
    """

    container: UUID
    quota: int
    cards: tuple[int, ...]
    key: str

    def options(self) -> dict[str, str]:
        return {
            CONTAINER: str(self.container),
            "gpu_memory": str(self.quota),
            "cards": ",".join(map(str, self.cards)),
            KEY: self.key,
        }

    def audit_detail(self, volume: str) -> dict[str, Any]:
        """What the audit log says of it."""
        return {"volume": volume, "cards": list(self.cards), "gpu_memory": self.quota}


def parse(options: Mapping[str, str]) -> PlacementTicket | None:
    """None if these options are not a placer's. Raises Problem."""
    if CONTAINER not in options:
        return None
    try:
        cards = tuple(int(card) for card in options["cards"].split(","))
        ticket = PlacementTicket(UUID(options[CONTAINER]), int(options["gpu_memory"]), cards, options[KEY])
    except (KeyError, ValueError):
        ticket = None
    if ticket is None or options != ticket.options() or len(set(ticket.cards)) != len(ticket.cards):
        raise Problem(
            "invalid",
            f'The option "{CONTAINER}" is for containers that a Swarm brings, with "gpu_memory", "cards" and "key" '
            "alone. "
            "Somebody else's containers name their own gpu_memory (docs/volumes.md).",
            400,
        )
    return ticket
