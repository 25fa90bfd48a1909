"""Whose turn it is after a restart: nobody is served by chance before those who waited as well have asked again.

Those who were suspended under the last scheduler ask the new one in whatever order their processes connect. The first
of them would be decided as if it were alone, and have what was meant for somebody before it. So as long as one of them
is *expected* on a GPU, a policy would order an incomplete queue, and only those are served there whom every policy
tries at once: containers that hold memory and ask for more, as they would beside a complete one. All others, those who
waited before and newcomers, wait until the queue is complete: moments, as a rule, and `Expected.until` at the most.
Who is paused cannot ask, and is not waited for.
"""

from dataclasses import replace
from math import isfinite

from scheduler.core import safety
from scheduler.core.events import WaitedBefore
from scheduler.core.state import Expected, Request, State


def begun(state: State, event: WaitedBefore) -> State:
    asked = {request.container for request in state.waiting}
    names = frozenset(name for name in event.containers if name in state.containers and name not in asked)
    until = event.until if isfinite(event.until) else state.now
    return replace(state, expected=Expected(names, began=state.now, until=until))


def is_complete(state: State, gpu: str) -> bool:
    """Whether all who waited for this GPU under the last scheduler are in its queue, as far as they are to come."""
    return not any(
        gpu in container.quota and not container.paused
        for name in state.expected.containers
        if (container := state.containers.get(name))
    )


def holds_up(state: State, request: Request) -> bool:
    """Whether a call is not tried yet because others are expected. What a person has placed is in its place."""
    if not state.expected.containers or request.placed or is_complete(state, request.gpu):
        return False
    return request.since < state.expected.began or not safety.holds(state.containers[request.container])


def without(state: State, containers: frozenset[str]) -> State:
    return replace(state, expected=replace(state.expected, containers=state.expected.containers - containers))
