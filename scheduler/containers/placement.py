"""Which GPUs a container gets when it does not name them, by what the scheduler itself has promised."""

from __future__ import annotations

from scheduler.core.state import State
from web.spec import placement


def choose(state: State, count: int, quota: int) -> list[str]:
    """`count` GPUs that could ever give `quota`, by the rule of `web.spec.placement`. Raises its Problem."""
    cards = list(state.gpus.values())
    promised = {card.uuid: sum(state.containers[name].quota[card.uuid] for name in card.members) for card in cards}
    return placement.choose(cards, promised, quota, count)
