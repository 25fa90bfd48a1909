"""Serves together what is worth most and fills the card best; nobody waits for ever.

**Worth.** A call's worth grows with its size (fewer large ones would leave the card empty late), less than in
proportion (a short queue of small ones is worth more than one large call), and with the time it has waited:
2^(priority/25) × (waited + 1 s)^0.4 × (1/8 + (size/capacity)^0.4), divided by 1 + the owner's holdings in units of
its share, so that whoever holds less than others goes first. Among all sets that fit, the one with the most
worth is served, emptiness counted against it (`packing.py`). The exponents were found by search over the paper's
workload (`python -m benchmarks.simulation`), and no run time enters.

**Starting whole.** While others wait, a container that holds nothing starts only when its whole claim fits:
holding a part while waiting for the rest is what spoils the paper's rules. A program asks for its context first, and a
moment later for its memory. So what a container that began to hold less than STARTING seconds ago may still claim is
*meant* for it: no newcomer starts with that, nor with a part of what is left because it is the only one that waits.
Nothing is meant for who is not completable: its whole claim is not to be had, and nobody waits for what may never end.

**The bound.** A call that has waited long is *due*, and one of those due on a card is its head (`people/heads.py`): the
first, if all are one person's. While the head waits, these alone are granted anything on the GPUs of its container:
containers that hold memory already, and newcomers that fit beside it (`_leaves_room`) and that no cap keeps
(`people/sharing.py`). A newcomer with several GPUs is judged beside the head of each, wherever its first call is: it
holds memory then.
*Claim: the head is granted at the latest when all containers that held memory there when it became the head have
ended* (or freed what they held). Proof: a newcomer is let in only if it, and all other holders that would fit
beside the head, fit with their whole quotas beside the head's whole quota. By induction that stays true of all
newcomers together. So once the old holders are gone, the head's claim is free and stays safe whatever the
newcomers do, and the call is granted in the event that ended the last of them. A call therefore waits at most its
patience, plus one such round for each head before it: docs/deciding.md says how many. All of this assumes what only
an admin or a foreign process can break: that no holder is paused for ever and no foreign memory comes; a head that
cannot be helped by waiting (not completable) blocks nobody.
"""

from collections.abc import Iterable, Mapping, Sequence

from scheduler.core import packing, reserved, safety
from scheduler.core.packing import Item
from scheduler.core.people import sharing
from scheduler.core.people.heads import counts, haste
from scheduler.core.state import Container, Request, Stage, State

# Seconds from a program's first memory on in which it has asked for the next of it: it makes a context in between.
STARTING = 1.0


class Sure:
    """The containers that can end while the paused stay paused. Worked out when first asked for."""

    def __init__(self, state: State, gpu: str) -> None:
        self._state, self._gpu = state, gpu
        self._names: set[str] | None = None

    def __contains__(self, container: str) -> bool:
        if self._state.calm:
            return True
        if self._names is None:
            self._names = safety.completable(self._state, safety.linked(self._state, [self._gpu]))
        return container in self._names


class Meant:
    """Bytes that are free, and meant for those who are starting. Worked out for a GPU when first asked for."""

    def __init__(self, state: State, sure: Sure) -> None:
        self._state, self._sure = state, sure
        self._meant: dict[str, int] = {}

    def __getitem__(self, gpu: str) -> int:
        if gpu not in self._meant:
            members = (self._state.containers[name] for name in self._state.gpus[gpu].members)
            starting = [each for each in members if self._starts(each)]
            self._meant[gpu] = sum(max(0, each.quota[gpu] - safety.held(each, gpu)) for each in starting)
        return self._meant[gpu]

    def _starts(self, container: Container) -> bool:
        if self._state.now - container.began >= STARTING or not container.leased:
            return False
        stopped = container.paused or container.killed or (container.stage and container.stage is Stage.LEAVING)
        return not stopped and container.id in self._sure


def order(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    """The calls to try, best first; the file's header says why."""
    room = reserved.free(state, gpu)
    able = [r for r in waiting if r.bytes <= room or _has_more(state, r)]
    if not able:
        return []
    sure = Sure(state, gpu)
    meant = Meant(state, sure)
    alone = len(waiting) == 1 and not meant[gpu]
    starting: Sequence[Request] = [r for r in able if alone or _starts(state, r, sure, meant)]
    if heads := {card: head.container for card, head in state.people.heads.items()}:
        starting = [r for r in starting if _may_go_first(state, r, heads, sure)]
        starting = [r for r in starting if capped_by(state, r, sure) is None]
    if len(starting) < 2:
        return starting
    highest = _highest(state, starting)
    items = [
        Item(size, _worth(state, r, size, highest), place)
        for place, r in enumerate(starting)
        if (size := _size(state, r)) <= room
    ]
    chosen = [item.index for item in packing.best(items, room, state.gpus[gpu].capacity)] if items else []
    spare = [place for place in range(len(starting)) if place not in chosen]
    return [starting[place] for place in chosen + spare]


def _has_more(state: State, request: Request) -> bool:
    """Whether there is room for it beside what is free for all: a part of it is guaranteed, or kept for its owner."""
    container = state.containers[request.container]
    if container.guaranteed or not state.reserves:
        return container.guaranteed
    return request.bytes <= reserved.free(state, request.gpu, container.owner)


def _size(state: State, request: Request) -> int:
    """What serving a call takes: for a newcomer its whole claim, which is what it will ask for."""
    container = state.containers[request.container]
    return request.bytes if safety.holds(container) else container.quota[request.gpu]


def _starts(state: State, request: Request, sure: Sure, meant: Meant) -> bool:
    """Whether a call may be tried while others wait: a newcomer only if its whole claim fits."""
    container = state.containers[request.container]
    if safety.holds(container) or lacking(state, container, meant) is None:
        return True
    return container.id not in sure  # waiting for the rest cannot help it


def lacking(state: State, newcomer: Container, meant: Meant) -> str | None:
    """A GPU on which its whole quota is not free, or not for it."""
    for gpu, quota in newcomer.quota.items():
        free = reserved.free(state, gpu, newcomer.owner)
        if quota > free or quota > free - meant[gpu]:
            return gpu
    return None


def _highest(state: State, requests: Sequence[Request]) -> dict[str, int]:
    """Each person's highest priority of those that count only among its own."""
    found: dict[str, int] = {}
    for request in requests:
        container = state.containers[request.container]
        if not counts(state, container):
            found[container.owner] = max(container.priority, found.get(container.owner, container.priority))
    return found


def _worth(state: State, request: Request, size: int, highest: Mapping[str, int]) -> float:
    container, capacity = state.containers[request.container], max(1, state.gpus[request.gpu].capacity)
    waited = state.now - request.since + 1.0
    priority = container.priority - (0 if counts(state, container) else highest[container.owner])
    worth = haste(priority) * waited**0.4 * (0.125 + (size / capacity) ** 0.4)
    return float(worth / (1 + sharing.part(state, request.gpu, container.owner)))


def beside(state: State, head: Request, ranked: Sequence[Request], sure: Sure) -> list[Request]:
    """Those of `ranked` that may go before `head`: holders, and newcomers that cannot delay it."""
    heads = dict.fromkeys(state.gpus, head.container)
    return [request for request in ranked if _may_go_first(state, request, heads, sure)]


def _may_go_first(state: State, request: Request, heads: Mapping[str, str], sure: Sure) -> bool:
    """Whether it may be granted before the heads of its container's GPUs: a holder, or a newcomer that cannot delay
    them. Whoever holds memory on one GPU is a holder on the others, too, so all of them count."""
    newcomer = state.containers[request.container]
    if safety.holds(newcomer):
        return True
    firsts = {heads[gpu] for gpu in newcomer.quota if gpu in heads}
    return all(
        name == newcomer.id or name not in sure or _leaves_room(state, state.containers[name], newcomer)
        for name in firsts
    )


def capped_by(state: State, request: Request, sure: Sure) -> str | None:
    """A container with a due call that keeps this newcomer from passing it by the cap (`sharing.py`), if any does."""
    newcomer, people = state.containers[request.container], state.people
    if len(people.owners) < 2 or safety.holds(newcomer):
        return None
    if any(head.container == newcomer.id for gpu, head in people.heads.items() if gpu in newcomer.quota):
        return None
    for gpu in newcomer.quota:
        for name in people.late.get(gpu, ()):
            due = state.containers[name]
            if sharing.held_back_by(state, gpu, newcomer, due) and name in sure:
                return name
    return None


def _card_of(state: State, gpu: str, head: Container) -> int:
    """Bytes of a card without what is kept for others than this head. One that has no room beside that waits for the
    reservation's end; then the whole card counts."""
    capacity, kept = state.gpus[gpu].capacity, reserved.kept(state, gpu, head.owner)
    return capacity - kept if head.quota[gpu] + kept <= capacity else capacity


def _leaves_room(state: State, head: Container, newcomer: Container) -> bool:
    """Whether `head` gets its whole quota no later for this newcomer, in whatever order the others end.

    Holders of more than what is left beside `head` have to end before it in any case. All others, and the newcomer,
    must fit beside it with their whole quotas.
    """
    for gpu in newcomer.quota.keys() & head.quota.keys():
        beside = _card_of(state, gpu, head) - head.quota[gpu]
        taken = newcomer.quota[gpu]
        for name in state.gpus[gpu].members:
            other = state.containers[name]
            if name not in (head.id, newcomer.id) and 0 < safety.held(other, gpu) <= beside:
                taken += other.quota[gpu]
        if taken > beside:
            return False
    return True
