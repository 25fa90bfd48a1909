"""Of planned launches whose conditions hold: which stand in the memory queue, and on which cards.

A planned launch waits as if it had been launched, without a container: with a *stand-in*, a call for its whole quota
on each of its cards (`StandIn`), which holds nothing until all are served at once: when each is tried on its card. So
the memory queue decides when it begins, by the rules and with the bounds that hold for any call (`fair.py`,
`people/heads.py`), and there is no second rule of what is free. Served, its whole quota is guaranteed to it
(`Promised`) until a process of its container has its first memory.

The first of each person stand in the queue, of each shape one: what does not fit does not fit a second time either. A
stand-in is on certain cards: where it fits now; else where least is promised, and it goes to others as soon as it would
be served there. It is derived from the records alone: whatever becomes of it, it is simply put again. One stands
nowhere while too few cards are in service, or so much is reserved for others that it could not begin before their end.
"""

from bisect import insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from scheduler.core import changes, reserved
from scheduler.core.admission import size
from scheduler.core.arbiter import handle
from scheduler.core.effects import Promised
from scheduler.core.events import ContainerEnded, StandIn
from scheduler.core.people import heads, sharing
from scheduler.core.people.standing import rank
from scheduler.core.state import Container, State

MOST = 64  # stand-ins, if there are no more people: each makes the decisions of all others a little longer


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

    def open(self, state: State, owner: str) -> list[str]:
        """Those of them that could give the quota now, whoever of the containers there had ended."""
        room = {gpu: state.gpus[gpu].capacity - reserved.kept(state, gpu, owner) for gpu in self.in_service(state)}
        return [gpu for gpu, most in room.items() if self.quota <= most]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of which a run may begin. `since`: when that became so, on the state's clock; `number`: earlier planned ones
    have lower ones. `container`: the id of the container that comes next of it."""

    id: str
    owner: str
    since: float
    shape: Shape
    priority: int = 0
    number: float = 0.0
    container: str = ""

    @property
    def key(self) -> tuple[float, float, str]:
        return heads.own_order(self.since, self.priority), self.number, self.id


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


@dataclass(slots=True)
class Queue:
    """Those of which a run may begin, each person's in the person's own order."""

    people: dict[str, list[Candidate]] = field(default_factory=dict)
    known: dict[str, Candidate] = field(default_factory=dict)

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

    def steps(
        self, state: Callable[[], State], now: float, coming: Collection[str] = (), blocked: Collection[str] = ()
    ) -> Iterator[StandIn | ContainerEnded]:
        """The events for the core, one after the other; `state`: as it is then. `coming`: containers that have
        begun, and may not be there yet. `blocked`: people who may have no more running now."""
        wanted = {each.container: each for each in self._first(state(), blocked)}
        for each in [its for its in state().containers.values() if its.stands_in and its.id not in coming]:
            if not ((its := wanted.get(each.id)) and _stands_for(state(), each, its)):
                yield ContainerEnded(now, each.id)
        for its in wanted.values():
            if its.container not in state().containers and (cards := _place(state(), its)):
                yield _stand_in(its, cards, now)
        for its in wanted.values():
            if elsewhere := _elsewhere(state(), its, now):
                yield elsewhere

    def promised(self, state: State) -> list[tuple[Candidate, list[str]]]:
        """Those that may begin now, and on which cards."""
        stands = ((each, state.containers.get(each.container)) for each in self.known.values())
        return [(each, list(its.quota)) for each, its in stands if its and its.stands_in and its.guaranteed]

    def ranked(self, state: State, blocked: Collection[str] = ()) -> list[str]:
        """The people with planned launches, who goes first at the front."""
        found = rank(state, list(state.gpus), [call for call in state.waiting if call.session < 0])

        def key(name: str) -> tuple[int, float, float]:
            held = max((sharing.part(state, gpu, name) for gpu in state.gpus), default=0.0)
            return found.get(name, (2, held, self.people[name][0].since))

        return sorted((name for name in self.people if name not in blocked), key=key)

    def in_order(self, names: Sequence[str], most: int) -> list[Candidate]:
        """The first of all, people in turn."""
        return list(islice(_in_turn([iter(self.people[name]) for name in names]), most))

    def _first(self, state: State, blocked: Collection[str]) -> Iterator[Candidate]:
        """Those that are to stand in the queue."""
        names = self.ranked(state, blocked)
        each = max(1, MOST // max(1, len(names)))
        return _in_turn([islice(_shapes(state, self.people[name]), each) for name in names])


def _in_turn(queues: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    while queues:
        for queue in list(queues):
            if (candidate := next(queue, None)) is None:
                queues.remove(queue)
            else:
                yield candidate


def _shapes(state: State, its: Sequence[Candidate]) -> Iterator[Candidate]:
    """The first of each shape, of one person's, that could begin if all others had ended."""
    seen = set[Shape]()
    for candidate in its:
        if candidate.shape not in seen:
            seen.add(candidate.shape)
            if len(candidate.shape.open(state, candidate.owner)) >= candidate.shape.count:
                yield candidate


def _stand_in(its: Candidate, cards: Sequence[str], now: float) -> StandIn:
    quota = dict.fromkeys(cards, its.shape.quota)
    return StandIn(now, its.container, quota, its.owner, its.priority, its.since)


def _stands_for(state: State, stands: Container, its: Candidate) -> bool:
    """Whether that is what is to stand there."""
    fits = set(stands.quota.values()) == {its.shape.quota} and len(stands.quota) == its.shape.count
    able = its.shape.in_service(state) if stands.guaranteed else its.shape.open(state, its.owner)
    return fits and (stands.owner, stands.priority) == (its.owner, its.priority) and stands.quota.keys() <= set(able)


def _place(state: State, its: Candidate) -> tuple[str, ...]:
    """Where it fits now; else where least is promised."""
    shape, cards = its.shape, its.shape.open(state, its.owner)
    if found := fitting(state, shape, {gpu: reserved.free(state, gpu, its.owner) for gpu in cards}, its.owner):
        return found
    left = {gpu: state.gpus[gpu].capacity - reserved.spoken_for(state, gpu, its.owner, shape.lasts) for gpu in cards}
    return most_room(shape, cards, left)


def _elsewhere(state: State, its: Candidate, now: float) -> StandIn | None:
    """It waits, and would be served at once on other cards."""
    stands, shape = state.containers.get(its.container), its.shape
    if stands is None or not stands.stands_in or stands.guaranteed:
        return None
    room = {gpu: reserved.free(state, gpu, its.owner) for gpu in shape.open(state, its.owner)}
    others: list[tuple[str, ...]] = [(gpu,) for gpu in room if gpu not in stands.quota and room[gpu] >= shape.quota]
    if shape.count > 1:
        others = [cards] if set(cards := fitting(state, shape, room, its.owner)) - stands.quota.keys() else []
    for cards in others:
        event = _stand_in(its, cards, now)
        if Promised(its.container) in handle(state, event)[1]:
            return event
    return None


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


def without_those_that_wait(state: State) -> State:
    """As if nothing were planned that has not been promised its memory."""
    for call in [each for each in state.waiting if each.session < 0]:
        state = changes.without(state, call)
    for each in [its for its in state.containers.values() if its.stands_in and not its.guaranteed]:
        state = changes.drop_container(state, each)
    return state
