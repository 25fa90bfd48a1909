"""How people and groups stand, in figures and words: for the fairness page, the launch preview, the container page."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler.core import safety
from scheduler.core.people import heads, sharing
from scheduler.core.people.ledger import Account
from scheduler.core.people.ratios import ratios
from scheduler.core.people.tree import Node
from scheduler.core.state import Request, State


class Standing(NamedTuple):
    """`had`, `due`: byte·seconds, of all hosts, decayed. `held`, `share`: bytes by GPU, where it holds or waits.
    `waits`: how many of its calls wait here."""

    had: float
    due: float
    ratio: float
    held: dict[str, int]
    share: dict[str, float]
    waits: int


class Standings(NamedTuple):
    people: dict[str, Standing]
    groups: dict[str, Standing]


def standings(state: State, now: float) -> Standings:
    """Everybody of whom anything is known, and the groups that they stand in."""
    tree, known = state.people.tree, ratios(state, now)
    there = {name for meter in state.people.meters.values() for name, entry in meter.people.items() if entry.there}
    names = sorted(known.accounts.keys() | there | state.people.owners.keys())
    members: dict[str, list[str]] = {}
    for name in names:
        if group := tree.parent(name):
            members.setdefault(group, []).append(name)

    def standing(node: Node, its: Iterable[str]) -> Standing:
        total, waits, gpus = Account(), 0, dict[str, None]()
        for name in its:
            total = total.plus(known.accounts.get(name, Account()))
            for gpu, meter in state.people.meters.items():
                entry = meter.people.get(name)
                if entry and entry.there:
                    gpus[gpu], waits = None, waits + entry.calls
        ratio = known.groups.get(node.name, 1.0) if node.is_group else known.of(node.name, tree.parent(node.name))
        held = {gpu: sharing.held(state, gpu, node) for gpu in gpus}
        return Standing(*total, ratio, held, {gpu: sharing.share(state, gpu, node) for gpu in gpus}, waits)

    return Standings(
        {name: standing(Node(name), [name]) for name in names},
        {group: standing(Node(group, is_group=True), its) for group, its in members.items()},
    )


class Place(NamedTuple):
    """Of a person on some cards: `holds`: bytes by GPU. `before`: the people who go first, the first first. `own`: how
    many of its own calls wait there."""

    holds: dict[str, int]
    before: tuple[str, ...]
    own: int


def place(state: State, person: str, gpus: Iterable[str]) -> Place:
    """Where a person's next call on these cards would stand; of one that waits there already, its first call.

    Before it go the heads, then who else has a due call, as they would be elected now if the person has none, then of
    those who are not due yet who holds less of its share, or as much and has waited for longer.
    """
    cards = [gpu for gpu in gpus if gpu in state.gpus]
    calls = [
        request
        for request in state.waiting
        if not safety.put_by(container := state.containers[request.container])
        and not container.quota.keys().isdisjoint(cards)
    ]
    mine = [request for request in calls if state.containers[request.container].owner == person]
    ranks = rank(state, cards, calls)
    first = ranks.get(person, (2, max((sharing.part(state, gpu, person) for gpu in cards), default=0.0), state.now))
    before = sorted((its for its in ranks.items() if its[0] != person and its[1] < first), key=lambda its: its[1])
    return Place(
        {gpu: sharing.held(state, gpu, Node(person)) for gpu in cards}, tuple(name for name, _ in before), len(mine)
    )


def rank(state: State, cards: list[str], calls: list[Request]) -> dict[str, tuple[int, float, float]]:
    """Person → (head, due or neither; the elected first, or who holds least of its share; since when it waits)."""
    heads_ = {h.container: h.number for gpu, h in state.people.heads.items() if gpu in cards}
    due = [request for request in calls if heads.due(state, request) <= state.now]
    known = ratios(state, state.now)
    order = {name: turn for gpu in cards for turn, name in enumerate(heads.order(state, gpu, due, known))}
    found: dict[str, tuple[int, float, float]] = {}
    for request in calls:
        container = state.containers[request.container]
        if container.id in heads_:
            its = 0, float(heads_[container.id]), request.since
        elif heads.due(state, request) <= state.now:
            its = 1, float(order[container.owner]), request.since
        else:
            its = 2, sharing.part(state, request.gpu, container.owner), request.since
        found[container.owner] = min(found.get(container.owner, its), its)
    return found


def say(place: Place, names: Mapping[str, str] | None = None) -> str:
    """One or two sentences to the person. `names`: person → what people call it."""
    own = f"{place.own} of your requests wait." if place.own > 1 else ""
    first = [] if any(place.holds.values()) else ["You hold nothing there."]
    people = [(names or {}).get(each, each) for each in place.before]
    if not people:
        return " ".join([*first, own or "Nobody else is before you."])
    who = people[0] if len(people) == 1 else f"{len(people)} people"
    then = own or "your job is next after " + ("that person." if len(people) == 1 else "them.")
    return " ".join([*first, f"{who} {'is' if len(people) == 1 else 'are'} before you{'.' if own else ';'} {then}"])
