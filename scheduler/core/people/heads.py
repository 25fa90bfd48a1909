"""Whose call nobody may delay: for each card one of the calls that are due, its *head*.

A call is *due* once it has waited PATIENCE / 2^(priority/25) seconds. Where all due calls on a card, and on those that
are linked to it, are one person's, the head is the one that became due first. Where they are several people's, it is
elected group by group, and in a group person by person: the one with the greatest

    (time since a due call of it was last served there, at most CREDIT more than it has been due) × shares
    × ratio⁻² (within 1/8 to 8)

and of that person the call that became due first. It stays head until it is served, or gone, with one exception: its
side holds more than its share of the card, and one that holds less would be elected now. Then that one is head instead,
and stays (*firm*), so a card's head changes at most once before a call of a head is served. Who needs several cards is
not replaced.

Heads of linked cards never wait for each other in a circle: a head that needs a card whose head has gone comes before
all that are not elected yet, the one elected first before others. So on every card the head has the lowest number of
all heads that need it, and the one with the lowest number of all is head on each of its cards.

Priority orders within a person. Across people it counts only if an operator gave it: else a call is due after PATIENCE
as soon as two people have containers here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from scheduler.core import safety
from scheduler.core.people import sharing
from scheduler.core.people.ledger import Entry, Head
from scheduler.core.people.ratios import Ratios, ratios
from scheduler.core.state import Container, Request, State

# How long a call of priority 0 waits, in seconds, before nobody passes it at its cost any more.
PATIENCE = 600.0

# So many steps of priority double the worth of a call, and halve its patience.
DOUBLING = 25

# Seconds that count at most of the time before a call was due. Of who has one container after the other, each computing
# for hours, the next is not to wait as long as others' calls have waited since they were served.
CREDIT = 86400.0

AGAIN = 60.0  # seconds until replacing a head is judged again

CLAMP = 8.0  # how far a ratio carries: with the most against the least, 64 times


def haste(priority: int) -> float:
    return float(2 ** (priority / DOUBLING))


def counts(state: State, container: Container) -> bool:
    """Whether its priority counts against all that wait here."""
    return container.across or len(state.people.owners) < 2


def due(state: State, request: Request) -> float:
    """From when on nobody passes a call at its cost."""
    container = state.containers[request.container]
    return request.since + (PATIENCE / haste(container.priority) if counts(state, container) else PATIENCE)


def _among_its_own(state: State, request: Request) -> float:
    """What orders the due calls of one person."""
    return own_order(request.since, state.containers[request.container].priority)


def own_order(since: float, priority: int) -> float:
    """What orders what one person waits for: the least goes first."""
    return since + PATIENCE / haste(priority)


def head(state: State, gpu: str) -> Request | None:
    """The head of a card. The arbiter keeps heads up to date (`elect`)."""
    if (chosen := state.people.heads.get(gpu)) is None:
        return None
    key = chosen.session, chosen.serial
    return next((r for r in state.waiting if (r.session, r.serial) == key), None)


def elect(state: State) -> State:
    """Cards whose head has been served, or is gone, get another one, if any call is due there."""
    people = state.people
    if state.now < people.look:
        return state
    look, late = inf, []
    for place, request in enumerate(state.waiting):
        if not safety.put_by(state.containers[request.container]):
            since = due(state, request)
            if since <= state.now:
                late.append((_among_its_own(state, request), place, request))
            else:
                look = min(look, since)
    calls: dict[str, list[Request]] = {}
    for *_, request in sorted(late, key=lambda each: each[:2]):
        for gpu in state.containers[request.container].quota:
            calls.setdefault(gpu, []).append(request)
    known = {gpu: chosen for gpu, chosen in people.heads.items() if _is_among(chosen, calls.get(gpu, ()))}
    election = _Election(state, calls, known)
    heads, elected = election.held()
    if election.may_change:
        look = min(look, state.now + AGAIN)
    asked = {gpu: tuple(r.container for r in its if r.gpu == gpu) for gpu, its in calls.items()}
    return replace(state, people=people._replace(heads=heads, elected=elected, late=asked, look=look))


def _is_among(chosen: Head, calls: Iterable[Request]) -> bool:
    return any((r.session, r.serial) == (chosen.session, chosen.serial) for r in calls)


class _Election:
    """`calls`: GPU → the due calls of containers with a quota there, in the order in which each became due."""

    def __init__(self, state: State, calls: Mapping[str, Sequence[Request]], known: dict[str, Head]) -> None:
        self._state, self._calls, self._heads = state, calls, known
        self._number = state.people.elected
        self._ratios: Ratios | None = None
        self.may_change = False  # by time alone: a head is of a side with more than its share

    def held(self) -> tuple[dict[str, Head], int]:
        seen: set[str] = set()
        for gpu in self._calls:
            if gpu not in seen:
                near = [each for each in safety.linked(self._state, [gpu]) if each in self._calls]
                seen.update(near)
                if len({self._owner(r) for each in near for r in self._calls[each]}) < 2:
                    self._by_time(near)
                else:
                    self._by_person(near)
        return self._heads, self._number

    def _owner(self, request: Request) -> str:
        return self._state.containers[request.container].owner

    def _next(self, request: Request) -> Head:
        self._number += 1
        return Head(request.session, request.serial, request.container, self._number)

    def _by_time(self, gpus: Collection[str]) -> None:
        """One person's: who is due first, on each card. They are numbered in that order, so that nothing goes in a
        circle if another person comes."""
        firsts = {(r.session, r.serial): r for gpu in gpus for r in self._calls[gpu][:1]}
        order = sorted(firsts.values(), key=lambda r: (_among_its_own(self._state, r), self._state.waiting.index(r)))
        numbered = {(r.session, r.serial): self._next(r) for r in order}
        for gpu in gpus:
            first = self._calls[gpu][0]
            self._heads[gpu] = numbered[first.session, first.serial]

    def _by_person(self, gpus: Collection[str]) -> None:
        for gpu in gpus:
            elsewhere = [
                each for card, each in self._heads.items() if card != gpu and _is_among(each, self._calls[gpu])
            ]
            if gpu not in self._heads:
                lowest = min(elsewhere, key=lambda chosen: chosen.number, default=None)
                self._heads[gpu] = lowest or self._next(self._chosen(gpu))
            elif not elsewhere and (instead := self._instead(gpu, self._heads[gpu])):
                self._heads[gpu] = self._next(instead)._replace(firm=True)

    def _chosen(self, gpu: str) -> Request:
        return chosen_of(self._state, gpu, self._calls[gpu], self._known_ratios())

    def _instead(self, gpu: str, chosen: Head) -> Request | None:
        """Whose call replaces a head. The head needs no other card, and no head of another card needs this one: so the
        new one may have the highest number."""
        state, container = self._state, self._state.containers[chosen.container]
        if chosen.firm or len(container.quota) > 1 or not sharing.has_more(state, gpu, container.owner):
            return None
        self.may_change = True
        first = self._chosen(gpu)
        other = self._owner(first)
        return first if sharing.gives_place_to(state, gpu, container.owner, other) else None

    def _known_ratios(self) -> Ratios:
        if self._ratios is None:
            self._ratios = ratios(self._state, self._state.now)
        return self._ratios


def chosen_of(state: State, gpu: str, calls: Sequence[Request], known: Ratios) -> Request:
    """The call that is elected on a card, of those that are due there."""
    standing = _Standing(state, gpu, calls, known)
    group = min(standing.groups, key=standing.of_group)
    person = min(standing.groups[group], key=standing.of_person)
    return next(r for r in calls if state.containers[r.container].owner == person)


def order(state: State, gpu: str, calls: Sequence[Request], known: Ratios) -> list[str]:
    """The people with these due calls, as they would be elected now, if each were gone when it had been served once."""
    standing = _Standing(state, gpu, calls, known)
    groups = sorted(standing.groups, key=standing.of_group)
    inside = [sorted(standing.groups[group], key=standing.of_person) for group in groups]
    longest = max(map(len, inside), default=0)
    return [its[turn] for turn in range(longest) for its in inside if turn < len(its)]


class _Standing:
    """How people with due calls stand to each other on a card. Keys to sort by: the first goes first.

    `groups`: what stands at the root: a group, or a person by itself → those of it with due calls.
    """

    def __init__(self, state: State, gpu: str, calls: Sequence[Request], known: Ratios) -> None:
        self._state, self._ratios = state, known
        self._tree = state.people.tree
        meter = state.people.meters.get(gpu)
        self._entries: Mapping[str, Entry] = meter.people if meter else {}
        self._since: dict[str, float] = {}
        self.groups: dict[tuple[str, str], list[str]] = {}
        for request in calls:
            person = state.containers[request.container].owner
            if person not in self._since:
                group = self._tree.parent(person)
                self.groups.setdefault((group, "" if group else person), []).append(person)
            self._since[person] = min(self._since.get(person, inf), due(state, request))

    def of_person(self, person: str) -> tuple[float, float]:
        since = self._since[person]
        ratio = self._ratios.of(person, self._tree.parent(person))
        return self._key(since, self._served(person), self._tree.weight(person), ratio)

    def of_group(self, node: tuple[str, str]) -> tuple[float, float]:
        group, person = node
        if not group:
            return self.of_person(person)
        since = min(self._since[each] for each in self.groups[node])
        members = [name for name in self._entries if self._tree.parent(name) == group]
        served = max(map(self._served, members), default=-inf)
        return self._key(since, served, self._tree.group_weight(group), self._ratios.groups.get(group, 1.0))

    def _served(self, person: str) -> float:
        entry = self._entries.get(person)
        return entry.served if entry else -inf

    def _key(self, since: float, served: float, weight: float, ratio: float) -> tuple[float, float]:
        waited = self._state.now - max(since - CREDIT, served)
        return -waited * weight * min(CLAMP, max(1 / CLAMP, ratio**-2)), since


def served(state: State, request: Request) -> State:
    """A call has been granted: if it was due, its person's time begins anew on the cards of its container."""
    people, container = state.people, state.containers[request.container]
    if not people.heads or due(state, request) > state.now:
        return state
    meters = dict(people.meters)
    for gpu in container.quota:
        if meter := meters.get(gpu):
            entry = (meter.people.get(container.owner) or Entry())._replace(served=state.now)
            meters[gpu] = meter._replace(people={**meter.people, container.owner: entry})
    return replace(state, people=people._replace(meters=meters))
