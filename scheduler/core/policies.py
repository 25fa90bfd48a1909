"""Who is tried next when memory comes back: pure functions, in one dict `POLICIES`.

A policy puts the calls that wait for one GPU into the order in which they are tried; one that it leaves out is not
tried. It decides about turns only. Whether a call *can* be granted is the arbiter's question (`safety.py`), so no
policy can bring about a deadlock by an order. It could by leaving somebody out, hence one rule for all of them:

    A call of a container that holds memory is always tried. Memory comes back only when holders end, and among those
    that are completable the first one in order is either running or can be granted what it asks.

So a policy may make only newcomers wait, those that hold nothing yet; and it may make them wait only for somebody who
is certain to be served (completable while the paused stay paused), never for one that nothing but an admin can help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from . import packing, safety
from .packing import Item
from .state import Container, Request, State

Order = Callable[[State, str, Sequence[Request]], Iterable[Request]]


@dataclass(frozen=True, slots=True)
class Policy:
    """`order` of (state, GPU, the calls that wait for it) gives those to try, the first first."""

    order: Order
    explanation: str
    source: str


def order(state: State, gpu: str) -> list[Request]:
    """The calls to try on this GPU now. Those placed by an admin come first, whatever the policy."""
    able = [r for r in state.waiting if r.gpu == gpu and not state.containers[r.container].paused]
    placed = [r for r in able if r.placed]
    others = list(POLICIES[state.policy].order(state, gpu, [r for r in able if not r.placed]))
    if placed and others:
        others = _beside(state, placed[0], others, _sure(state, gpu))
    return placed + others


def holds(container: Container) -> bool:
    return container.guaranteed or any(container.leased.values())


def _sure(state: State, gpu: str) -> set[str]:
    return safety.completable(state, safety.linked(state, [gpu]))


# ---- the paper's four --------------------------------------------------------------------------------------------


def _fifo(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    sure = _sure(state, gpu) if len(waiting) > 1 else set()
    blocked = False
    for request in waiting:
        if not blocked or holds(state.containers[request.container]):
            yield request
        blocked = blocked or request.container in sure


def _best_fit(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    return sorted(waiting, key=lambda request: request.bytes, reverse=True)


def _recent_use(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    return sorted(waiting, key=lambda request: request.since, reverse=True)


def _random(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    def draw(request: Request) -> bytes:
        words = (state.seed, state.grants, request.session, request.serial)
        return blake2b(repr(words).encode(), digest_size=8).digest()

    return sorted(waiting, key=draw)


# ---- fair --------------------------------------------------------------------------------------------------------

# How long a call of priority 0 waits, in seconds, before nobody passes it at its cost any more.
PATIENCE = 600.0

# So many steps of priority double the worth of a call, and halve its patience.
DOUBLING = 25

# A large call that has waited this long (seconds), and that only so small a part of the card keeps out, is let in
# first if those who could pass it would fill no more than this part of what is free.
GLANCE, REMNANT, CROWD = 8.0, 0.25, 0.4


def _fair(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    """Serves together what is worth most and fills the card best; nobody waits for ever.

    **Worth.** A call's worth grows with its size (fewer large ones would leave the card empty late), less than in
    proportion (a short queue of small ones is worth more than one large call), and with the time it has waited:
    2^(priority/25) × (waited + 1 s)^0.4 × (1/8 + (size/capacity)^0.4), divided by 1 + the owner's holdings in units of
    an equal share, so that whoever holds less than others goes first. Among all sets that fit, the one with the most
    worth is served, emptiness counted against it (`packing.py`). The exponents were found by search over the paper's
    workload (`manage.py simulate`), and no run time enters.

    **Starting whole.** While others wait, a container that holds nothing starts only when its whole claim fits:
    holding a part while waiting for the rest is what spoils the paper's rules.

    **The bound.** Call r *due* once it has waited PATIENCE / 2^(priority/25) seconds. Among due calls the first is
    the one that became due first; call it the head. While the head waits, these alone are granted anything on the
    GPUs of its container: containers that hold memory already, and newcomers that fit beside it (`_leaves_room`).
    *Claim: the head is granted at the latest when all containers that held memory there when it became the head have
    ended* (or freed what they held). Proof: a newcomer is let in only if it, and all other holders that would fit
    beside the head, fit with their whole quotas beside the head's whole quota. By induction that stays true of all
    newcomers together. So once the old holders are gone, the head's claim is free and stays safe whatever the
    newcomers do, and the call is granted in the event that ended the last of them. A call therefore waits at most its
    patience, plus one such round for each call that became due before it. All of this assumes what only an admin or
    a foreign process can break: that no holder is paused for ever and no foreign memory comes; a head that cannot be
    helped by waiting (not completable) blocks nobody.
    """
    sure = _sure(state, gpu)
    room = safety.free(state, gpu)
    starting: Sequence[Request] = [r for r in waiting if _starts(state, r, sure, alone=len(waiting) == 1)]
    due = [r for r in state.waiting if gpu in state.containers[r.container].quota and _due(state, r) <= state.now]
    if due:
        starting = _beside(state, min(due, key=lambda r: _due(state, r)), starting, sure)
    elif large := next((r for r in waiting if r not in starting and state.now - r.since >= GLANCE), None):
        starting = _let_in(state, large, starting, room)
    items = [
        Item(size, _worth(state, r, size), place)
        for place, r in enumerate(starting)
        if (size := _size(state, r)) <= room
    ]
    chosen = [item.index for item in packing.best(items, room, state.gpus[gpu].capacity)] if items else []
    spare = [place for place in range(len(starting)) if place not in set(chosen)]
    return [starting[place] for place in chosen + spare]


def _size(state: State, request: Request) -> int:
    """What serving a call takes: for a newcomer its whole claim, which is what it will ask for."""
    container = state.containers[request.container]
    return request.bytes if holds(container) else container.quota[request.gpu]


def _starts(state: State, request: Request, sure: set[str], *, alone: bool) -> bool:
    """Whether a call may be tried at all: a newcomer, while others wait, only if its whole claim fits."""
    container = state.containers[request.container]
    if alone or holds(container) or container.id not in sure:
        return True
    return all(quota <= safety.free(state, gpu) for gpu, quota in container.quota.items())


def _worth(state: State, request: Request, size: int) -> float:
    container, card = state.containers[request.container], state.gpus[request.gpu]
    waited = state.now - request.since + 1.0
    worth = 2 ** (container.priority / DOUBLING) * waited**0.4 * (0.125 + (size / max(1, card.capacity)) ** 0.4)
    return float(worth / (1 + _holdings(state, request.gpu, container.owner)))


def _holdings(state: State, gpu: str, owner: str) -> float:
    """What an owner's containers hold of a GPU, in units of an equal share among all owners there."""
    card = state.gpus[gpu]
    here = [state.containers[name] for name in card.members]
    held = sum(safety.held(container, gpu) for container in here if container.owner == owner)
    return held * len({container.owner for container in here}) / max(1, card.capacity)


def _due(state: State, request: Request) -> float:
    return request.since + PATIENCE / 2 ** (state.containers[request.container].priority / DOUBLING)


def _beside(state: State, head: Request, ranked: Sequence[Request], sure: set[str]) -> list[Request]:
    """Those of `ranked` that may go before `head`: holders, and newcomers that cannot delay it."""
    waits_for = state.containers[head.container]
    if waits_for.id not in sure:
        return list(ranked)
    return [
        request
        for request in ranked
        if request.container == waits_for.id
        or holds(newcomer := state.containers[request.container])
        or _leaves_room(state, waits_for, newcomer)
    ]


def _leaves_room(state: State, head: Container, newcomer: Container) -> bool:
    """Whether `head` gets its whole quota no later for this newcomer, in whatever order the others end.

    Holders of more than what is left beside `head` have to end before it in any case. All others, and the newcomer,
    must fit beside it with their whole quotas.
    """
    for gpu in newcomer.quota.keys() & head.quota.keys():
        beside = state.gpus[gpu].capacity - head.quota[gpu]
        taken = newcomer.quota[gpu]
        for name in state.gpus[gpu].members:
            other = state.containers[name]
            if name not in (head.id, newcomer.id) and 0 < safety.held(other, gpu) <= beside:
                taken += other.quota[gpu]
        if taken > beside:
            return False
    return True


def _let_in(state: State, large: Request, starting: Sequence[Request], room: int) -> Sequence[Request]:
    """Holds back the few that would fill little, when a newcomer that does not fit yet is about to get in.

    Otherwise small calls take each hole as it opens, and a large one starts only when they have all gone.
    """
    gpu = large.gpu
    head, capacity = state.containers[large.container], state.gpus[gpu].capacity
    beside = capacity - head.quota[gpu]
    holdings = [safety.held(state.containers[name], gpu) for name in state.gpus[gpu].members if name != head.id]
    if sum(held for held in holdings if held > beside) > REMNANT * capacity:
        return starting
    allowed = [
        r for r in starting
        if holds(container := state.containers[r.container]) or _leaves_room(state, head, container)
    ]  # fmt: skip
    crowd = sum(_size(state, r) for r in starting if r not in allowed)
    return allowed if crowd <= CROWD * room else starting


POLICIES: dict[str, Policy] = {
    "fair": Policy(
        _fair,
        "Serves together the calls that are worth most, by size, time waited, priority and what their owner already "
        "holds, so that little of the card stays empty. Who has waited ten minutes is passed only by those that "
        "cannot delay it.",
        "Our own; backfilling after EASY (Lifka, JSSPP 1995), shares after fair-share scheduling (Kay and Lauder, "
        "CACM 1988).",
    ),
    "fifo": Policy(
        _fifo,
        "The call that has waited longest is served first, and newcomers queue behind it even if they would fit.",
        "ConVGPU (Kang et al., IEEE CLUSTER 2017), without holding memory while waiting.",
    ),
    "best-fit": Policy(
        _best_fit,
        "The largest call that fits what is free is served first. Large calls can wait for long.",
        "ConVGPU (Kang et al., IEEE CLUSTER 2017), without holding memory while waiting.",
    ),
    "recent-use": Policy(
        _recent_use,
        "The container that was suspended most recently is served first. Early ones can wait for long.",
        "ConVGPU (Kang et al., IEEE CLUSTER 2017), without holding memory while waiting.",
    ),
    "random": Policy(
        _random,
        "Any call that fits, by lot; the same lots for the same seed.",
        "ConVGPU (Kang et al., IEEE CLUSTER 2017), without holding memory while waiting.",
    ),
}
