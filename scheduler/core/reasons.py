"""Why does a call wait? One sentence for people, with the figures."""

from __future__ import annotations

from scheduler.core import fair, safety
from scheduler.core.admission import size
from scheduler.core.state import Request, State


def why(state: State, request: Request, *, tried: bool) -> str:
    """What keeps a waiting call from its memory now. `tried`: the policy tries it (`policies.order`)."""
    container, gpu, asked = state.containers[request.container], request.gpu, size(request.bytes)
    if container.paused:
        return f"Paused. Its request for {asked} waits until it is resumed."
    room = safety.free(state, gpu) + safety.held(container, gpu) - container.leased.get(gpu, 0)
    if request.bytes > room:
        free = size(max(0, room))
        if request.back:
            return f"Returns to the GPU when {asked} is free (now {free})."
        return f"Needs {asked}; {free} is free."
    if tried:
        left = size(room - request.bytes)
        return f"Needs {asked}. {size(room)} is free, but a grant would leave {left}, and containers could deadlock."
    meant = fair.Meant(state, fair.Sure(state, gpu))
    if state.policy == "fair" and (lacking := fair.lacking(state, container, meant)):
        whole, free = size(container.quota[lacking]), size(max(0, safety.free(state, lacking)))
        begins = "Returns to the GPU" if request.back else "Starts"
        others = min(meant[lacking], safety.free(state, lacking))
        but = f", {size(others)} of it reserved for containers that have just started" if others > 0 else ""
        return f"{begins} when its whole quota of {whole} is free (now {free}{but}). Its first request: {asked}."
    return f"Needs {asked} of {size(room)} free. A container that has waited longer, or was put first, goes first."
