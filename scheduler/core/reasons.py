"""Why does a call wait? One sentence for people, with the figures."""

from scheduler.core import fair, reserved, safety
from scheduler.core.admission import size
from scheduler.core.people import heads, sharing
from scheduler.core.people.ratios import ratios
from scheduler.core.people.tree import Node
from scheduler.core.state import Container, Request, State


def why(state: State, request: Request, *, tried: bool) -> str:
    """What keeps a waiting call from its memory now. `tried`: the policy tries it (`policies.order`)."""
    container, gpu, asked = state.containers[request.container], request.gpu, size(request.bytes)
    if container.paused:
        return f"Paused. Its request for {asked} waits until it is resumed."
    room = reserved.free(state, gpu, container.owner) + safety.held(container, gpu) - container.leased.get(gpu, 0)
    if request.bytes > room:
        free, kept = size(max(0, room)), reserved.kept(state, gpu, container.owner)
        but = f", {size(kept)} reserved for others" if kept else ""
        if request.back:
            return f"Returns to the GPU when {asked} is free (now {free}{but})."
        return f"Needs {asked}; {free} is free{but}."
    if tried:
        left = size(room - request.bytes)
        return f"Needs {asked}. {size(room)} is free, but a grant would leave {left}, and containers could deadlock."
    sure = fair.Sure(state, gpu)
    meant = fair.Meant(state, sure)
    if state.policy == "fair" and (lacking := fair.lacking(state, container, meant)):
        whole, free = size(container.quota[lacking]), size(max(0, reserved.free(state, lacking, container.owner)))
        begins = "Returns to the GPU" if request.back else "Starts"
        others = min(meant[lacking], safety.free(state, lacking))
        but = f", {size(others)} of it reserved for containers that have just started" if others > 0 else ""
        return f"{begins} when its whole quota of {whole} is free (now {free}{but}). Its first request: {asked}."
    needs = f"Needs {asked} of {size(room)} free."
    if state.policy == "fair" and not request.placed:
        if first := fair.capped_by(state, request, sure):
            return f"{needs} {_above(state, request, state.containers[first])}"
        head = next((h for g in container.quota if (h := heads.head(state, g)) and h.container != container.id), None)
        if head and (owner := state.containers[head.container].owner) != container.owner:
            return f"{needs} {_goes_first(state, owner, container.owner)}"
    return f"{needs} A container that has waited longer, or was put first, goes first."


def why_withheld(asked: int, owner: str, seconds: float) -> str:
    """The first memory of a container whose owner's others have had more of a card's turns than is due."""
    return (
        f"Needs {size(asked)}. Other containers of {owner or 'somebody'!r} have computed more than their share of the "
        f"GPU. It gets its first memory in about {max(1, round(seconds))} s, or when nobody else computes there."
    )


def _above(state: State, request: Request, first: Container) -> str:
    """The cap: whose side holds how much of what share, and who has less."""
    container, gpu = state.containers[request.container], request.gpu
    mine, theirs = state.people.tree.parted(container.owner, first.owner)
    amounts = [size(sharing.held(state, gpu, mine)), size(round(sharing.share(state, gpu, mine)))]
    whole = size(sharing.held(state, gpu, mine) + container.quota[gpu])
    less = size(sharing.held(state, gpu, theirs))
    return (
        f"{_name(mine)} holds {amounts[0]} and would hold {whole}, above its share of {amounts[1]}. {_name(theirs)} "
        f"holds {less}, less than its share, and has waited longer than {round(heads.PATIENCE / 60)} minutes."
    )


def _goes_first(state: State, first: str, other: str) -> str:
    """The head, with what it was elected by: what each had of its fair share, or their groups, if these differ."""
    known, (one, two) = ratios(state, state.now), state.people.tree.parted(first, other)
    had = [known.groups.get(n.name, 1.0) if n.is_group else known.of(n.name, state.people.tree.parent(n.name))
           for n in (one, two)]  # fmt: skip
    return f"{_name(one)} goes first: it has had {had[0]:.2f} of its fair share, {_name(two)} {had[1]:.2f}."


def _name(node: Node) -> str:
    return f"Group {node.name!r}" if node.is_group else f"{node.name or 'somebody'!r}"
