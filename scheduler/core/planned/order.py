"""Of planned launches whose conditions hold: which may start now, and on which cards.

Who goes first is the memory queue's rule (`people/standing.rank`), with one call for each person: the first of the
person's own, and what was promised to started ones counted as held. A planned launch starts where its whole *quota* is
free; a started one keeps all of its quota from then on, others what they hold. What is reserved is free for its people
alone. On a card where running containers wait for memory none starts but in what is reserved for its person: they go
first. On one that is out of service none starts. One that has waited as long as makes a call due keeps the cards with
most room: nobody passes it there but in what is reserved for them. So it starts once enough containers have ended and
reservations in its way are over, however large it is. Among cards where it fits, those with most room beside what
others have reserved within its time limit are taken.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf

from scheduler.core import reserved, safety
from scheduler.core.admission import size
from scheduler.core.people import heads, ledger
from scheduler.core.people.ledger import People
from scheduler.core.people.standing import rank
from scheduler.core.state import Container, Request, State

TRIES = 200  # shapes that one decision looks at


@dataclass(frozen=True, slots=True)
class Shape:
    """`quota`: bytes on each of `count` cards; `gpus`: these very ones, or none if any will do. `lasts`: seconds at the
    most, by its time limit."""

    quota: int
    count: int = 1
    gpus: tuple[str, ...] = ()
    lasts: float = inf

    def cards(self, state: State) -> list[str]:
        """Those that could ever give the quota, of those that it may have."""
        return [gpu for gpu in self.gpus or state.gpus if gpu in state.gpus and state.gpus[gpu].most >= self.quota]

    def in_service(self, state: State) -> list[str]:
        """Those of them on which something new may be placed."""
        return [gpu for gpu in self.cards(state) if not state.gpus[gpu].drained]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of which a run may begin. `since`: when that became so, on the state's clock; `number`: earlier planned ones
    have lower ones."""

    id: str
    owner: str
    since: float
    shape: Shape
    priority: int = 0
    number: float = 0.0

    @property
    def key(self) -> tuple[float, float, str]:
        return heads.own_order(self.since, self.priority), self.number, self.id


@dataclass(frozen=True, slots=True)
class Started:
    """A container of a planned launch that has not ended: what it was promised on each of its cards."""

    owner: str
    quota: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Start:
    candidate: Candidate
    gpus: tuple[str, ...]


def impossible(state: State, shape: Shape) -> str:
    """Why no waiting can make it possible, as a sentence; empty if it can."""
    if gone := [gpu for gpu in shape.gpus if gpu not in state.gpus]:
        return f"GPU {gone[0]} is not in this host any more."
    if len(able := shape.cards(state)) >= shape.count:
        return ""
    most = max((card.most for card in state.gpus.values()), default=0)
    if shape.count > len(state.gpus):
        return f"It needs {shape.count} GPUs; this host has {len(state.gpus)}."
    where = f"{len(able)} of {shape.count} GPUs" if able else f"no GPU here: the most is {size(most)}"
    return f"{size(shape.quota)} can ever be had on {where}."


def rooms(state: State, started: Mapping[str, Started], owner: str = "") -> dict[str, int]:
    """GPU → bytes that nobody holds, nobody was promised by a start, and nobody but this person has reserved. Less than
    nothing where nothing of theirs starts now."""
    waits = {r.gpu for r in state.waiting if not safety.put_by(state.containers[r.container])}
    waits |= {
        gpu for name in state.expected.containers if name in state.containers for gpu in state.containers[name].quota
    }
    found = {}
    for gpu, card in state.gpus.items():
        own = own_room(state, started, gpu, owner)
        free = -1 if gpu in waits else reserved.free(state, gpu, owner, _promised(state, started, gpu))
        found[gpu] = max(own, free) if own else free
        if card.drained:
            found[gpu] = -1
    return found


def own_room(state: State, started: Mapping[str, Started], gpu: str, owner: str) -> int:
    """Bytes of a GPU that are reserved for this person, free, and promised to nobody who has a right to them. What was
    promised to others before a reservation began is not given to them of it."""
    with_right = reserved.people_of(state, gpu, owner)
    if not with_right:
        return 0
    promised = [each for each in _promised(state, started, gpu) if each[0] in with_right]
    return max(0, min(reserved.right(state, gpu, owner, promised), reserved.free(state, gpu, owner, promised)))


def rooms_of(state: State, started: Mapping[str, Started]) -> Callable[[str], dict[str, int]]:
    """The same for each person, reckoned once for all where nothing is kept for some."""
    if any(each.is_kept for each in state.reserves):
        return cache(lambda owner: rooms(state, started, owner))
    same = rooms(state, started)
    return lambda owner: same


def _promised(state: State, started: Mapping[str, Started], gpu: str) -> list[tuple[str, int]]:
    return [(its.owner, more) for id_, its in started.items() if (more := _more(state, id_, its, gpu))]


def _more(state: State, id_: str, its: Started, gpu: str) -> int:
    """Bytes that a started one was promised beyond what it holds."""
    return max(0, its.quota.get(gpu, 0) - _held(state, id_, gpu))


def _held(state: State, id_: str, gpu: str) -> int:
    container = state.containers.get(id_)
    return safety.held(container, gpu) if container else 0


@dataclass(slots=True)
class Queue:
    """Those of which a run may begin, each person's in the person's own order. `served`: person → when one of theirs
    was last started."""

    people: dict[str, list[Candidate]] = field(default_factory=dict)
    known: dict[str, Candidate] = field(default_factory=dict)
    served: dict[str, float] = field(default_factory=dict)

    def put(self, candidate: Candidate) -> None:
        """Comes in, or is another one from now on."""
        if self.known.get(candidate.id) != candidate:
            self.drop(candidate.id)
            self.known[candidate.id] = candidate
            insort(self.people.setdefault(candidate.owner, []), candidate, key=lambda each: each.key)

    def drop(self, id_: str) -> None:
        if (candidate := self.known.pop(id_, None)) is not None:
            its = self.people[candidate.owner]
            its.remove(candidate)
            if not its:
                del self.people[candidate.owner]

    def next_start(
        self, state: State, started: Mapping[str, Started], now: float, blocked: Iterable[str] = ()
    ) -> Start | None:
        """`blocked`: people who may have no more running now."""
        room_of, kept = rooms_of(state, started), set[str]()
        names = self.ranked(state, started, now, blocked)
        for tries, candidate in enumerate(self._each_shape(names)):
            if tries == TRIES:
                break
            owner = candidate.owner
            room = room_of(owner)
            open_ = room | {gpu: own_room(state, started, gpu, owner) for gpu in kept}
            if cards := fitting(state, candidate.shape, open_, owner):
                return Start(candidate, cards)
            if now - candidate.since >= heads.PATIENCE:
                kept.update(most_room(candidate.shape, candidate.shape.in_service(state), room))
        return None

    def note(self, start: Start, now: float) -> None:
        """It has been started: its person's time begins anew, as when a due call is served."""
        self.served[start.candidate.owner] = now

    def in_order(self, names: Sequence[str], most: int) -> list[Candidate]:
        """The first of all, people in turn."""
        found: list[Candidate] = []
        for turn in range(max((len(self.people[name]) for name in names), default=0)):
            found += [self.people[name][turn] for name in names if turn < len(self.people[name])]
            if len(found) >= most:
                break
        return found[:most]

    def ranked(
        self, state: State, started: Mapping[str, Started], now: float, blocked: Iterable[str] = ()
    ) -> list[str]:
        """The people with planned launches, who goes first at the front."""
        out = set(blocked)
        firsts = [its[0] for name, its in self.people.items() if name not in out]
        if len(firsts) < 2 or not state.gpus:
            return [each.owner for each in firsts]
        room = rooms(state, started)
        stand_ins, calls = {}, []
        for number, first in enumerate(firsts, 1):
            cards = first.shape.cards(state) or list(state.gpus)
            quota = dict.fromkeys(cards, first.shape.quota)
            stand_ins[first.id] = Container(first.id, quota, first.owner, priority=first.priority)
            card = max(cards, key=lambda gpu: room[gpu])
            since = max(first.since, self.served.get(first.owner, -inf))
            calls.append(Request(-number, 0, first.id, card, first.shape.quota, since))
        people = _as_promised(state, started, now, [each.owner for each in firsts])
        as_if = replace(state, containers={**state.containers, **stand_ins}, people=people, now=now)
        found = rank(as_if, list(state.gpus), calls)
        return sorted(found, key=lambda name: found[name])

    def _each_shape(self, names: Sequence[str]) -> Iterator[Candidate]:
        """People in turn, each shape of a person's once: what does not fit does not fit a second time either."""
        queues = [_shapes(self.people[name]) for name in names]
        while queues:
            for queue in list(queues):
                if (candidate := next(queue, None)) is None:
                    queues.remove(queue)
                else:
                    yield candidate


def _shapes(its: Sequence[Candidate]) -> Iterator[Candidate]:
    seen = set[Shape]()
    for candidate in its:
        if candidate.shape not in seen:
            seen.add(candidate.shape)
            yield candidate


def fitting(state: State, shape: Shape, room: Mapping[str, int], owner: str = "") -> tuple[str, ...]:
    """The cards with most room for it, also later; none if it does not fit now."""
    cards = [gpu for gpu in shape.cards(state) if room.get(gpu, -1) >= shape.quota]
    if len(cards) < shape.count:
        return ()
    later = {
        gpu: room[gpu] - max(0, reserved.of_others(state, gpu, owner, shape.lasts) - reserved.kept(state, gpu, owner))
        for gpu in cards
    }
    return most_room(shape, cards, later)


def most_room(shape: Shape, cards: Sequence[str], room: Mapping[str, int]) -> tuple[str, ...]:
    """As many of these cards as it needs, those with most room."""
    return tuple(sorted(cards, key=lambda gpu: -room.get(gpu, -1))[: shape.count])


def _as_promised(state: State, started: Mapping[str, Started], now: float, waits: Sequence[str]) -> People:
    """As if started ones held what they were promised, and each of these people waited on every card."""
    people = state.people
    for id_, its in started.items():
        for gpu in its.quota:
            if gpu in state.gpus and (more := _more(state, id_, its, gpu)):
                people = ledger.changed(people, gpu, its.owner, now, held=more)
    for person in waits:
        for gpu in state.gpus:
            people = ledger.changed(people, gpu, person, now, calls=1)
    return people._replace(owners={**people.owners, **{name: people.owners.get(name, 0) + 1 for name in waits}})
