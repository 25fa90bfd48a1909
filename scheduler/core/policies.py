"""Who is tried next when memory comes back: pure functions, in one dict `POLICIES`.

A policy puts the calls that wait for one GPU into the order in which they are tried; one that it leaves out is not
tried. It decides about turns only. Whether a call *can* be granted is the arbiter's question (`safety.py`), so no
policy can bring about a deadlock by an order. It could by leaving somebody out, hence one rule for all of them:

    A call of a container that holds memory is always tried. Memory comes back only when holders end, and among those
    that are completable the first one in order is either running or can be granted what it asks.

So a policy may make only newcomers wait, those that hold nothing yet; and it may make them wait only for somebody who
is certain to be served (completable while the paused stay paused), never for one that nothing but an admin can help.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from scheduler.core import expected, fair, reserved, safety
from scheduler.core.fair import Sure
from scheduler.core.state import Container, Request, Stage, State

Order = Callable[[State, str, Sequence[Request]], Iterable[Request]]


@dataclass(frozen=True, slots=True)
class Policy:
    """`order` of (state, GPU, the calls that wait for it) gives those to try, the first first.

    The rest is for people, a sentence each: who is served first, how long somebody waits at most, whose idea it is.
    """

    order: Order
    explanation: str
    bound: str
    source: str


def order(state: State, gpu: str) -> list[Request]:
    """The calls to try on this GPU now. Those for whom it is reserved come first, then those placed by an admin,
    whatever the policy.

    One that is swapped out has to be back with all that it had before it gets anything else; one that is leaving gets
    nothing. So it holds nothing that is not known to be on a card or to be out.
    """
    able = [r for r in state.waiting if r.gpu == gpu and may_be_served(state.containers[r.container], r)]
    if state.expected.containers:
        able = [request for request in able if not expected.holds_up(state, request)]
    first = reserved.entitled(state, gpu, able)
    able = [r for r in able if r not in first] if first else able
    placed = [r for r in able if r.placed]
    others = list(POLICIES[state.policy].order(state, gpu, [r for r in able if not r.placed]))
    if placed and others:
        others = fair.beside(state, placed[0], others, Sure(state, gpu))
    return first + placed + others


def may_be_served(container: Container, request: Request) -> bool:
    return not container.paused and (container.stage is Stage.RETURNING if request.back else not container.stage)


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


CONVGPU = "ConVGPU (Kang et al., IEEE CLUSTER 2017), without holding memory while waiting."

# The first is the default.
POLICIES: dict[str, Policy] = {
    "fair": Policy(
        fair.order,
        "Balances request size, waiting time, priority and each owner's use, and keeps the card full.",
        "After ten minutes (less with a high priority, more with a low one) only requests that cannot delay a waiting "
        "one may pass it. It then waits at most until the containers that hold memory at that moment have ended.",
        "Our own; backfilling after EASY (Lifka, JSSPP 1995), shares after fair-share scheduling (Kay and Lauder, "
        "CACM 1988).",
    ),
    "fifo": Policy(
        _fifo,
        "The oldest request is served first. Newer requests queue behind it even if they would fit.",
        "Until every earlier request has been served.",
        CONVGPU,
    ),
    "best-fit": Policy(
        _best_fit,
        "The largest request that fits is served first.",
        "No limit: smaller requests can keep a large one waiting.",
        CONVGPU,
    ),
    "recent-use": Policy(
        _recent_use,
        "The newest request is served first.",
        "No limit: newer requests can keep an old one waiting.",
        CONVGPU,
    ),
    "random": Policy(
        _random,
        "A random choice among the requests that fit.",
        "No limit: chance can pass over a request again and again.",
        CONVGPU,
    ),
}


def described() -> list[dict[str, str]]:
    """Every policy in words, as `Node.policies` has it: what pages and REST show."""
    return [
        {"name": name, "explanation": policy.explanation, "bound": policy.bound, "source": policy.source}
        for name, policy in POLICIES.items()
    ]
