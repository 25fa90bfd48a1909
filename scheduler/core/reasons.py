"""Why does a call wait? One sentence for people, with the figures."""

from __future__ import annotations

from scheduler.core import fair, safety
from scheduler.core.admission import size
from scheduler.core.state import Request, State


def why(state: State, request: Request, *, tried: bool) -> str:
    """What keeps a waiting call from its memory now. `tried`: the policy tries it (`policies.order`)."""
    container, gpu, asked = state.containers[request.container], request.gpu, size(request.bytes)
    if container.paused:
        return f"It is paused; it asks for {asked}."
    room = safety.free(state, gpu) + safety.held(container, gpu) - container.leased.get(gpu, 0)
    if request.bytes > room:
        free = size(max(0, room))
        if request.back:
            return f"It comes back when {asked} are free; {free} are."
        return f"It needs {asked}; {free} are free."
    if tried:
        left = size(room - request.bytes)
        return (
            f"It needs {asked} of {size(room)} free; with the {left} that this would leave, it and others could end up "
            "waiting for each other for ever."
        )
    meant = fair.Meant(state, fair.Sure(state, gpu))
    if state.policy == "fair" and (lacking := fair.lacking(state, container, meant)):
        whole, free = size(container.quota[lacking]), size(max(0, safety.free(state, lacking)))
        begins = "comes back" if request.back else "starts"
        others = min(meant[lacking], safety.free(state, lacking))
        but = f", {size(others)} of it for those who have just started" if others > 0 else ""
        return f"It {begins} once its whole quota of {whole} is free; {free} are{but}. It asks for {asked} first."
    return f"It needs {asked} of {size(room)} free; somebody who has waited longer, or was put first, goes first."
