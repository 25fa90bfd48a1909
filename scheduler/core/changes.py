"""Small pure steps from one `State` to the next. They decide nothing and keep the sums and indexes right."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

from scheduler.core.people import heads, ledger
from scheduler.core.people.ledger import People
from scheduler.core.safety import held, put_by
from scheduler.core.state import Container, Gpu, Request, Session, Stage, State


def put_container(state: State, container: Container) -> State:
    """Adds or replaces a container; a new one becomes a member of its GPUs."""
    known = state.containers.get(container.id)
    spanning = state.spanning
    if known is None and len(container.quota) > 1:
        spanning = (*spanning, container.id)
    gpus: dict[str, Gpu] = {}
    people = state.people if known else _owning(state.people, container.owner, 1)
    for gpu in container.quota:
        card, more = state.gpus[gpu], held(container, gpu) - (held(known, gpu) if known else 0)
        members = card.members if known else (*card.members, container.id)
        if more or not known:
            gpus[gpu] = replace(card, held=card.held + more, members=members)
        if more:
            people = ledger.changed(people, gpu, container.owner, state.now, held=more)
    if known and put_by(known) != put_by(container):
        for request in state.waiting:
            if request.container == container.id:
                people = _calling(people, state, request, 1 if put_by(known) else -1)
    return replace(
        state,
        gpus={**state.gpus, **gpus} if gpus else state.gpus,
        containers={**state.containers, container.id: container},
        spanning=spanning,
        people=people,
    )


def drop_container(state: State, container: Container) -> State:
    """Forgets a container and its sessions; its waiting calls have been answered before."""
    gpus, people = {}, _owning(state.people, container.owner, -1)
    for gpu in container.quota:
        card = state.gpus[gpu]
        if had := held(container, gpu):
            people = ledger.changed(people, gpu, container.owner, state.now, held=-had)
        members = tuple(name for name in card.members if name != container.id)
        gpus[gpu] = replace(card, held=card.held - held(container, gpu), members=members)
    return replace(
        state,
        gpus={**state.gpus, **gpus},
        people=people,
        spanning=tuple(name for name in state.spanning if name != container.id),
        containers={name: each for name, each in state.containers.items() if name != container.id},
        sessions={key: each for key, each in state.sessions.items() if each.container != container.id},
    )


def put_session(state: State, session: Session) -> State:
    """Adds a session that nobody knows yet, with what it was leased by an earlier scheduler."""
    container = state.containers[session.container]
    state = put_container(state, replace(container, sessions=(*container.sessions, session.id)))
    state = _lease(state, session.container, session.leased)
    return replace(state, sessions={**state.sessions, session.id: session})


def drop_session(state: State, session: Session) -> State:
    container = state.containers[session.container]
    leased, out = _sum(container.leased, session.leased, -1), _sum(container.out, session.out, -1)
    others = tuple(key for key in container.sessions if key != session.id)
    state = put_container(state, replace(container, leased=leased, out=out, sessions=others))
    return replace(state, sessions={key: each for key, each in state.sessions.items() if key != session.id})


def lend(state: State, session: int, gpu: str, change: int) -> State:
    """Changes what a session is leased on a GPU by `change` bytes, but not to less than nothing."""
    lender = state.sessions[session]
    more = {gpu: max(change, -lender.leased.get(gpu, 0))}
    state = _lease(state, lender.container, more)
    return replace(state, sessions={**state.sessions, session: replace(lender, leased=_sum(lender.leased, more, 1))})


def _lease(state: State, name: str, more: Mapping[str, int]) -> State:
    container = state.containers[name]
    since = container.held_since if container.leased else state.now
    return put_container(state, replace(container, leased=_sum(container.leased, more, 1), held_since=since))


def put_out(state: State, name: str) -> State:
    """What the sessions of a container are leased is leased no more, and remembered as out."""
    container = state.containers[name]
    sessions = {
        key: replace(each, leased={}, out=_sum(each.out, each.leased, 1))
        for key in container.sessions
        if (each := state.sessions[key])
    }
    out = _sum(container.out, container.leased, 1)
    state = put_container(state, replace(container, leased={}, out=out, stage=Stage.OUT, stays_until=-inf))
    return replace(state, sessions={**state.sessions, **sessions})


def reassign(state: State, name: str, cards: Mapping[str, str]) -> State:
    """A container that is out has its quota on other cards (old → new), and so have its calls, in their places."""
    container, queue = state.containers[name], state.waiting
    calls = [request for request in queue if request.container == name]
    for request in calls:
        state = without(state, request)
    sessions = {key: replace(state.sessions[key], out=_renamed(state.sessions[key].out, cards))
                for key in container.sessions}  # fmt: skip
    state = drop_container(state, container)
    moved = replace(container, quota=_renamed(container.quota, cards), out=_renamed(container.out, cards))
    state = put_container(state, moved)
    state = replace(state, sessions={**state.sessions, **sessions})
    for request in calls:
        awaiting = frozenset(cards.get(gpu, gpu) for gpu in request.awaiting)
        call = replace(request, gpu=cards.get(request.gpu, request.gpu), awaiting=awaiting)
        state = enqueue(state, call, queue.index(request))
    others = {gpu: chosen for gpu, chosen in state.people.heads.items() if gpu not in cards.values()}
    return replace(state, people=state.people._replace(heads=others, look=-inf))  # whose call is first is judged anew


def _renamed(amounts: Mapping[str, int], cards: Mapping[str, str]) -> dict[str, int]:
    return {cards.get(gpu, gpu): amount for gpu, amount in amounts.items()}


def bring_back(state: State, request: Request) -> State:
    """What a session had on a GPU, before it was swapped out, is leased again (`lend`): it is out no more."""
    session, container = state.sessions[request.session], state.containers[request.container]
    back = {request.gpu: request.bytes}
    state = put_container(state, replace(container, out=_sum(container.out, back, -1)))
    return replace(state, sessions={**state.sessions, session.id: replace(session, out=_sum(session.out, back, -1))})


def has_room(container: Container, gpu: str, amount: int) -> bool:
    """Whether the quota allows `amount` bytes more than what it is leased, and what of it is out."""
    return container.leased.get(gpu, 0) + container.out.get(gpu, 0) + amount <= container.quota[gpu]


def enqueue(state: State, request: Request, place: int) -> State:
    """Puts a call into the queue."""
    waiting = (*state.waiting[:place], request, *state.waiting[place:])
    return replace(state, waiting=waiting, people=_queued(state, request, 1))


def without(state: State, request: Request) -> State:
    waiting = tuple(each for each in state.waiting if each is not request)
    return replace(state, waiting=waiting, people=_queued(state, request, -1))


def _queued(state: State, request: Request, sign: int) -> People:
    if put_by(state.containers[request.container]):
        return state.people  # what it waits for is a person
    return _calling(state.people, state, request, sign)


def _calling(people: People, state: State, request: Request, sign: int) -> People:
    """One call more, or less, that waits for memory."""
    people = ledger.changed(people, request.gpu, state.containers[request.container].owner, state.now, calls=sign)
    since = heads.due(state, request)
    look = min(people.look, since) if sign > 0 else -inf if since <= state.now else people.look
    return people if look == people.look else people._replace(look=look)


def _owning(people: People, person: str, sign: int) -> People:
    """It has one container more, or less."""
    owners = {**people.owners, person: people.owners.get(person, 0) + sign}
    if not owners[person]:
        del owners[person]
    several = (len(owners) > 1) != (len(people.owners) > 1)  # then priorities count otherwise
    return people._replace(owners=owners, look=-inf if several else people.look)


def counted(state: State) -> People:
    """What each person holds and waits for, counted anew: nothing had, nothing due, no heads."""
    people = People(state.people.tree)
    for container in state.containers.values():
        people = _owning(people, container.owner, 1)
        for gpu in container.quota:
            people = ledger.changed(people, gpu, container.owner, state.now, held=held(container, gpu))
    for request in state.waiting:
        people = _queued(replace(state, people=people), request, 1)
    return people._replace(look=-inf)


def _sum(amounts: Mapping[str, int], more: Mapping[str, int], sign: int) -> dict[str, int]:
    """Adds GPU by GPU; a GPU with nothing left is left out."""
    total = dict(amounts)
    for gpu, amount in more.items():
        total[gpu] = total.get(gpu, 0) + sign * amount
    return {gpu: amount for gpu, amount in total.items() if amount}
