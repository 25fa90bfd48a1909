"""How a card is divided: at the root between groups and people without one, by shares; in a group between its members.

Only who is there counts in a division: who holds or waits on that card (for turns: who computes there).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ROOT = ""
LEAST, MOST = 0.001, 100_000.0  # shares; the most: 1,000 that are boosted 100 times
FINE = 2.0**16  # shares are multiples of 1/FINE, so that sums of them are exact in whatever order


class Node(NamedTuple):
    """A group or a person, as a part of what it stands in."""

    name: str
    is_group: bool = False


@dataclass(frozen=True, slots=True)
class Tree:
    """`groups`: person → its share group. `shares`: group → shares; a group that is not in it does not count, and its
    members stand at the root. `own`: person → shares among those it stands beside, 1 if it is not in it."""

    groups: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    own: Mapping[str, float] = field(default_factory=dict)

    def parent(self, person: str) -> str:
        """The group that it stands in, or ROOT."""
        group = self.groups.get(person, ROOT)
        return group if group in self.shares else ROOT

    def weight(self, person: str) -> float:
        return _fine(self.own[person]) if person in self.own else 1.0

    def group_weight(self, group: str) -> float:
        return _fine(self.shares[group])

    def way(self, person: str) -> tuple[Node, ...]:
        """From below the root down to the person."""
        group = self.parent(person)
        return (Node(group, is_group=True), Node(person)) if group else (Node(person),)

    def parted(self, one: str, other: str) -> tuple[Node, Node]:
        """The sides of two people: the groups or people where their ways from the root part."""
        if self.parent(one) == self.parent(other):
            return Node(one), Node(other)
        return self.way(one)[0], self.way(other)[0]

    def divide(self, people: Iterable[str]) -> dict[str, float]:
        """The fraction of each, if exactly these are there. The sum is 1."""
        named = dict.fromkeys(people)
        inside: dict[str, float] = {}
        for person in named:
            parent = self.parent(person)
            inside[parent] = inside.get(parent, 0.0) + self.weight(person)
        whole = inside.get(ROOT, 0.0) + sum(self.group_weight(group) for group in inside if group)
        return {
            person: self.weight(person)
            / (inside[group] * whole / self.group_weight(group) if (group := self.parent(person)) else whole)
            for person in named
        }


def mistake(tree: Tree) -> str | None:
    """What makes no sense in it, as a sentence for people."""
    if ROOT in tree.shares:
        return "A share group needs a name."
    for kind, shares in (("Group", tree.shares), ("Person", tree.own)):
        for name, amount in shares.items():
            if not LEAST <= amount <= MOST:
                return f"{kind} {name!r} cannot have {amount:g} shares: they are from {LEAST:g} to {MOST:g}."
    return None


def _fine(shares: float) -> float:
    return round(shares * FINE) / FINE
