"""How a card's time is divided: group, person, container, by weight; nobody more than its limit.

What a limit leaves goes to the others: of the same person first, then of the same group, then to all.
"""

from collections.abc import Hashable, Mapping

from scheduler.core.people.tree import Tree

Step = tuple[Hashable, float]  # a group, person or container, and its weight among those that it stands beside
Way = tuple[Step, ...]  # from below the root to a container


def divide(
    weights: Mapping[Hashable, float], most: Mapping[Hashable, float], whole: float = 1.0
) -> dict[Hashable, float]:
    """Each one's part of `whole`. `most`: who may have so much at most; the sum is less only if all are so limited."""
    shares: dict[Hashable, float] = {}
    rest = dict(weights)
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


def divide_by_person(tree: Tree, its: Mapping[str, tuple[str, int]], most: Mapping[str, float]) -> dict[str, float]:
    """Each container's part of a card on which exactly these compute. `its`: container → owner and weight."""
    return _along({name: _way(tree, name, *each) for name, each in its.items()}, most, 1.0)


def _way(tree: Tree, name: str, owner: str, weight: int) -> Way:
    group = tree.parent(owner)
    inside: Way = ((("person", owner), tree.weight(owner)), (name, weight))
    return ((("group", group), tree.group_weight(group)), *inside) if group else inside


def _along(ways: Mapping[str, Way], most: Mapping[str, float], whole: float) -> dict[str, float]:
    sides: dict[Step, dict[str, Way]] = {}
    for name, (step, *below) in ways.items():
        sides.setdefault(step, {})[name] = tuple(below)
    bounds = {side: sum(most[name] for name in its) for (side, _), its in sides.items() if its.keys() <= most.keys()}
    parts = divide(dict(sides.keys()), bounds, whole)
    shares: dict[str, float] = {}
    for (side, _), its in sides.items():
        if not all(its.values()):  # the containers themselves
            shares |= dict.fromkeys(its, parts[side])
        elif parts[side] == bounds.get(side):
            shares |= {name: most[name] for name in its}
        else:
            shares |= _along(its, most, parts[side])
    return shares
