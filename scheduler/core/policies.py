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

from scheduler.core import fair, safety
from scheduler.core.fair import Sure
from scheduler.core.state import Request, State

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
        others = fair.beside(state, placed[0], others, Sure(state, gpu))
    return placed + others


# ---- the paper's four --------------------------------------------------------------------------------------------


def _fifo(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    sure = Sure(state, gpu)
    blocked = False
    for request in waiting:
        if not blocked or safety.holds(state.containers[request.container]):
            yield request
        blocked = blocked or (len(waiting) > 1 and request.container in sure)


def _best_fit(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    return sorted(waiting, key=lambda request: request.bytes, reverse=True)


def _recent_use(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    return sorted(waiting, key=lambda request: request.since, reverse=True)


def _random(state: State, gpu: str, waiting: Sequence[Request]) -> Iterable[Request]:
    def draw(request: Request) -> bytes:
        words = (state.seed, state.grants, request.session, request.serial)
        return blake2b(repr(words).encode(), digest_size=8).digest()

    return sorted(waiting, key=draw)


POLICIES: dict[str, Policy] = {
    "fair": Policy(
        fair.order,
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
