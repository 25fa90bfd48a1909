"""What is due to people of whom some have less to run than they may have: the rest is due to the others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

from scheduler.core.people.tree import Tree

Name = TypeVar("Name", bound=Hashable)


def due(tree: Tree, wants: Mapping[str, int], total: float) -> dict[str, float]:
    """`total` divided by shares, group by group, nobody being due more than it `wants`: max-min fairness (Bertsekas and
    Gallager, Data Networks, 1987)."""
    members: dict[tuple[str, str], list[str]] = {}
    for name in wants:
        group = tree.parent(name)
        members.setdefault((group, "" if group else name), []).append(name)
    weights = {node: tree.group_weight(node[0]) if node[0] else tree.weight(node[1]) for node in members}
    parts = _level(weights, {node: sum(wants[name] for name in its) for node, its in members.items()}, total)
    found: dict[str, float] = {}
    for node, its in members.items():
        found |= _level({name: tree.weight(name) for name in its}, {name: wants[name] for name in its}, parts[node])
    return found


def _level(weights: Mapping[Name, float], wants: Mapping[Name, float], total: float) -> dict[Name, float]:
    found: dict[Name, float] = {}
    rest = set(weights)
    while rest:
        whole = sum(weights[name] for name in rest)
        full = {name for name in rest if wants[name] <= total * weights[name] / whole}
        if not full:
            return found | {name: total * weights[name] / whole for name in rest}
        found |= {name: float(wants[name]) for name in full}
        total -= sum(wants[name] for name in full)
        rest -= full
    return found
