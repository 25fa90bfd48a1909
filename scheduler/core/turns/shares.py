"""How a card's time is divided: by weight, nobody more than its limit, and what a limit leaves goes to the others."""

from __future__ import annotations

from collections.abc import Mapping


def divide(weights: Mapping[str, int], most: Mapping[str, float]) -> dict[str, float]:
    """Each one's part of 1. `most`: who may have so much at most; the sum is less than 1 only if all are so limited."""
    shares: dict[str, float] = {}
    rest, whole = dict(weights), 1.0
    while rest:
        total = sum(rest.values())
        full = [name for name in rest if name in most and most[name] * total <= whole * rest[name]]
        if not full:
            return shares | {name: whole * weight / total for name, weight in rest.items()}
        for name in full:
            shares[name] = most[name]
            whole -= most[name]
            del rest[name]
    return shares
