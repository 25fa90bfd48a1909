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
from math import sqrt

from . import safety
from .state import Container, Request, State

Order = Callable[[State, str, Sequence[Request]], Iterable[Request]]


@dataclass(frozen=True, slots=True)
class Policy:
    """`order` of (state, GPU, the calls that wait for it) gives those to try, the first first."""

    order: Order
    explanation: str
    source: str


# How long a call waits, in seconds, before `fair` lets nobody pass it at its cost.
PATIENCE = 120.0


def order(state: State, gpu: str) -> list[Request]:
    """The calls to try on this GPU now. Those placed by an admin come first, whatever the policy."""
    able = [r for r in state.waiting if r.gpu == gpu and not state.containers[r.container].paused]
    placed = [r for r in able if r.placed]
    rest = list(POLICIES[state.policy].order(state, gpu, [r for r in able if not r.placed]))
    return placed + _beside(state, gpu, placed[0], rest) if placed and rest else placed + rest


def holds(container: Container) -> bool:
    return any(container.leased.values())


def _fifo(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    sure = safety.completable(state, safety.linked(state, [gpu])) if len(waiting) > 1 else set()
    blocked = False
    for request in waiting:
        if not blocked or holds(state.containers[request.container]):
            yield request
        blocked = blocked or request.container in sure


def _best_fit(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    return sorted(waiting, key=lambda r: -r.bytes)


def _recent_use(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    return sorted(waiting, key=lambda r: -state.containers[r.container].last_used)


def _random(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    def draw(request: Request) -> bytes:
        words = (state.seed, state.grants, request.session, request.serial)
        return blake2b(repr(words).encode(), digest_size=8).digest()

    return sorted(waiting, key=draw)


def _fair(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    def score(request: Request) -> float:
        return (state.now - request.since) / sqrt(request.bytes)

    ranked = sorted(waiting, key=score, reverse=True)
    due = [r for r in state.waiting if gpu in state.containers[r.container].quota and state.now - r.since >= PATIENCE]
    return _beside(state, gpu, min(due, key=lambda r: r.since), ranked) if due else ranked


def _beside(state: State, gpu: str, head: Request, ranked: Sequence[Request]) -> list[Request]:
    """Those of `ranked` that may go before `head`: holders, and newcomers that cannot delay it."""
    sure = safety.completable(state, safety.linked(state, [gpu]))
    if head.container not in sure:
        return list(ranked)
    return [
        r
        for r in ranked
        if r.container == head.container
        or holds(state.containers[r.container])
        or _leaves_room(state, state.containers[head.container], state.containers[r.container])
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


POLICIES: dict[str, Policy] = {
    "fair": Policy(_fair, "", ""),
    "fifo": Policy(_fifo, "", ""),
    "best-fit": Policy(_best_fit, "", ""),
    "recent-use": Policy(_recent_use, "", ""),
    "random": Policy(_random, "", ""),
}
