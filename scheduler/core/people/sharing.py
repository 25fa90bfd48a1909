"""What sides hold of a card now, beside their share of it among those who hold or wait there.

**The cap.** A newcomer does not pass others if its side would then hold more than its share, while a side with less, in
parts of its share and below it, has a due call there. Whose person holds nothing on the card is exempt, and so are a
head and all that hold memory: so a cap ends at the latest when the person's own containers there have ended, and
decides nothing about who can end. Of those whom it may be for, the side with least is held back by nobody.
"""

from collections import Counter

from scheduler.core.people.tree import ROOT, Node
from scheduler.core.state import Container, State


def held(state: State, gpu: str, node: Node) -> int:
    """Bytes of a card that a side holds."""
    meter = state.people.meters.get(gpu)
    if meter is None:
        return 0
    if node.is_group:
        side = meter.sides.get(node.name)
        return side.held if side else 0
    entry = meter.people.get(node.name)
    return entry.held if entry else 0


def share(state: State, gpu: str, node: Node) -> float:
    """Bytes of a card that are its side's; as if it were there, if it is not."""
    people, capacity = state.people, float(max(0, state.gpus[gpu].capacity))
    tree, meter = people.tree, people.meters.get(gpu)
    sides = meter.sides if meter else {}
    group = node.name if node.is_group else tree.parent(node.name)
    inside = sides[group].shares if group in sides else 0.0
    whole = sides[ROOT].shares if ROOT in sides else 0.0
    entry = meter.people.get(node.name) if meter and not node.is_group else None
    there = entry is not None and entry.there
    if group:
        weight = tree.group_weight(group)
        capacity *= weight / (whole if inside else whole + weight)
        if node.is_group:
            return capacity
        whole = inside
    weight = tree.weight(node.name)
    return capacity * weight / (whole if there else whole + weight)


def part(state: State, gpu: str, person: str) -> float:
    """What a person holds of a card, in units of its share: above 1 is more."""
    mine = Node(person)
    return held(state, gpu, mine) / max(1.0, share(state, gpu, mine))


def above(state: State, container: Container) -> tuple[float, float]:
    """How far those it belongs to are above their shares, where most: its group, and in it its person. Nothing where
    nobody else is."""
    found = [(0.0, 0.0)]
    for gpu in container.leased:
        way = state.people.tree.way(container.owner)
        parts = [held(state, gpu, node) / max(1.0, share(state, gpu, node)) for node in way]
        if any(share(state, gpu, node) < state.gpus[gpu].capacity for node in way):
            found.append((parts[0], parts[-1]))
    return max(found)


def has_more(state: State, gpu: str, person: str) -> bool:
    """Whether the person, or its group, holds more than its share of a card."""
    return any(held(state, gpu, node) > share(state, gpu, node) for node in state.people.tree.way(person))


def gives_place_to(state: State, gpu: str, head: str, other: str) -> bool:
    """Whether the side of the person `head` has more than its share of a card, and the side of `other` less."""
    mine, theirs = state.people.tree.parted(head, other)
    over = held(state, gpu, mine) > share(state, gpu, mine)
    return over and held(state, gpu, theirs) < share(state, gpu, theirs)


def held_back_by(state: State, gpu: str, newcomer: Container, due: Container) -> bool:
    """Whether the cap keeps a newcomer from passing on this card, for another person's container with a due call."""
    mine, theirs = state.people.tree.parted(newcomer.owner, due.owner)
    if mine == theirs or not held(state, gpu, Node(newcomer.owner)):
        return False
    has, whole = held(state, gpu, mine), share(state, gpu, mine)
    if has + newcomer.quota[gpu] <= whole:
        return False
    less, all_ = held(state, gpu, theirs), share(state, gpu, theirs)
    return less < all_ and less * whole < has * all_


def lacks(state: State, gpu: str, node: Node, gone: int = 0) -> int:
    """Bytes of a card by which a side holds less than its share, when so much of it has gone."""
    return max(0, int(share(state, gpu, node)) - held(state, gpu, node) + gone)


Gone = Counter[tuple[str, Node]]  # card and group or person → bytes that are to go; below 0: that are to come


def gives_to(state: State, holder: Container, waits: Container, gpu: str, gone: Gone, *, keeps: bool) -> bool:
    """Whether a holder goes for a call on `gpu`: its side holds more than its share of each card that it leaves, the
    call's less of `gpu`, and afterwards less is lacking at the root; or, if both are in one group, as much there and
    less inside groups. With `keeps`, its side lacks nothing.

    `gone`: what the call gets, and what goes before it; what of the holder would go is added, if it may.
    """
    tree, after = state.people.tree, gone.copy()
    mine, theirs = tree.parted(holder.owner, waits.owner)
    over = all(held(state, card, mine) - gone[card, mine] > share(state, card, mine) for card in holder.leased)
    if mine == theirs or not over or not lacks(state, gpu, theirs):
        return False
    leaves = {(card, node): amount for card, amount in holder.leased.items() for node in tree.way(holder.owner)}
    after.update(leaves)
    if keeps and any(lacks(state, card, mine, after[card, mine]) for card in holder.leased):
        return False
    root = inside = 0  # how much more is lacking
    for (card, node), went in after.items():
        more = lacks(state, card, node, went) - lacks(state, card, node)
        if node.is_group or tree.parent(node.name) == ROOT:
            root += more
        else:
            inside += more
    if root >= 0 and (root or inside >= 0 or mine in tree.way(holder.owner)[:1]):
        return False
    gone.update(leaves)
    return True
