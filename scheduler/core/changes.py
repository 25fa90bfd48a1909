"""Small pure steps from one `State` to the next. They decide nothing and keep the sums and indexes right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .state import Container, Request, Session, State


def put_container(state: State, container: Container) -> State:
    """Adds or replaces a container; a new one becomes a member of its GPUs."""
    if container.id not in state.containers:
        members = {g: replace(state.gpus[g], members=(*state.gpus[g].members, container.id)) for g in container.quota}
        spanning = (container.id,) if len(container.quota) > 1 else ()
        state = replace(state, gpus={**state.gpus, **members}, spanning=state.spanning + spanning)
    return replace(state, containers={**state.containers, container.id: container})


def drop_container(state: State, container: Container) -> State:
    """Forgets a container and its sessions; its waiting calls have been answered before."""
    members = {
        g: replace(state.gpus[g], members=tuple(m for m in state.gpus[g].members if m != container.id))
        for g in container.quota
    }
    return replace(
        state,
        gpus={**state.gpus, **members},
        spanning=tuple(name for name in state.spanning if name != container.id),
        containers={name: each for name, each in state.containers.items() if name != container.id},
        sessions={key: each for key, each in state.sessions.items() if each.container != container.id},
    )


def put_session(state: State, session: Session) -> State:
    """Adds a session that nobody knows yet, with what it was leased by an earlier scheduler."""
    container = state.containers[session.container]
    opened = replace(
        container,
        sessions=(*container.sessions, session.id),
        leased=_sum(container.leased, session.leased, 1),
    )
    return replace(
        state,
        containers={**state.containers, opened.id: opened},
        sessions={**state.sessions, session.id: session},
    )


def drop_session(state: State, session: Session) -> State:
    container = state.containers[session.container]
    closed = replace(
        container,
        sessions=tuple(key for key in container.sessions if key != session.id),
        leased=_sum(container.leased, session.leased, -1),
    )
    return replace(
        state,
        containers={**state.containers, closed.id: closed},
        sessions={key: each for key, each in state.sessions.items() if key != session.id},
    )


def lend(state: State, session: int, gpu: str, change: int) -> State:
    """Changes what a session is leased on a GPU by `change` bytes, but not to less than nothing."""
    lender = state.sessions[session]
    container = state.containers[lender.container]
    change = max(change, -lender.leased.get(gpu, 0))
    return replace(
        state,
        containers={
            **state.containers,
            container.id: replace(container, leased=_sum(container.leased, {gpu: change}, 1)),
        },
        sessions={**state.sessions, session: replace(lender, leased=_sum(lender.leased, {gpu: change}, 1))},
    )


def without(state: State, request: Request) -> State:
    return replace(state, waiting=tuple(each for each in state.waiting if each is not request))


def _sum(amounts: Mapping[str, int], more: Mapping[str, int], sign: int) -> dict[str, int]:
    """Adds GPU by GPU; a GPU with nothing left is left out."""
    total = dict(amounts)
    for gpu, amount in more.items():
        total[gpu] = total.get(gpu, 0) + sign * amount
    return {gpu: amount for gpu, amount in total.items() if amount}
