"""Every state that can come about, one after the other: a small host, explored to the end.

The host has one or two GPUs of a few units, and containers with one process each. At every state everything that can
happen is tried: every request, every free, the end of every process, for `fair` the passing of time, and, if asked for,
every pause, every change of quota, foreign memory that comes and goes, every move out and back, which succeeds or
fails; every way of giving way: who is idle and who stirs; every restart of the scheduler, with those who waited asking
again in any order; and a reservation that begins and ends. Where containers are several people's, every outcome of an
election is tried, which covers whatever they have had, and whatever time has passed.
Headroom is not followed: what a process used of its lease without asking, in whatever order, shows only when headroom
is taken back, so *every* amount from nothing to all of each lease is tried there. Containers that differ in name only
are one state.

In every state that the arbiter settles on, all of `core/invariants.py` is checked, deadlock among it; as long as no
pause has happened also that nobody passes quota or capacity and that everybody is completable, or will be once the
foreign memory is gone.

`explore.py` is its command; docs/deciding.md has the counts. `splits.py` takes what is too large for it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, permutations, product

from benchmarks.simulation.exploring import among_people
from benchmarks.simulation.exploring.keys import LONG, NOW, STILL, Host, Key, build, key_of, reserves
from scheduler.core import fair, policies, safety
from scheduler.core.arbiter import handle
from scheduler.core.effects import Effect, Granted, Preempt, TakeBack
from scheduler.core.events import (
    ActivityDetected,
    CameBack,
    ContainerAdded,
    ContainerPaused,
    ContainerResumed,
    Event,
    GpuSeen,
    Idle,
    MoveBegun,
    Needed,
    NotMoved,
    QuotaChanged,
    ReservesChanged,
    Returned,
    SessionEnded,
    SessionOpened,
    SwapInRequested,
    SwappedOut,
    Ticked,
    WaitedBefore,
)
from scheduler.core.invariants import violations
from scheduler.core.people import heads
from scheduler.core.state import Container, Mode, Request, Stage, State

# Events handed in together, and their effects; an answer to TakeBack follows as another pair.
Step = tuple[tuple[tuple[Event, ...], tuple[Effect, ...]], ...]


def hosts(
    policy: str,
    containers: int,
    capacity: int,
    gpus: int,
    pauses: bool,
    changes: bool,
    swaps: bool = False,
    gives_way: Mode = Mode.OFF,
    restarts: bool = False,
    foreign: bool = False,
    people: int = 1,
) -> list[Host]:
    """Every choice of quotas, up to the names of containers. If quotas change, every choice of GPUs is enough."""
    amounts = (0, capacity) if changes else range(capacity + 1)
    vectors = [vector for vector in product(amounts, repeat=gpus) if any(vector)]
    return [
        Host(capacity, quotas, policy, pauses, changes, swaps, gives_way, restarts, foreign, owners)
        for quotas in combinations_with_replacement(vectors, containers)
        for owners in combinations_with_replacement(range(people), containers)
        if len(set(owners)) == people or people == 1
    ]


class Broken(AssertionError):
    """A state that must not be; the message tells the way to it."""


def explore(host: Host, limit: int | None = None) -> int:
    """Explores a host to the end (or to `limit` states). Returns the number of states; raises Broken."""
    nothing = (0,) * host.gpus
    owners = host.owners or (0,) * len(host.quotas)
    parts = sorted(
        (quota, nothing, nothing, False, STILL, (), owner, nothing)
        for quota, owner in zip(host.quotas, owners, strict=True)
    )
    start: Key = ((host.capacity,) * host.gpus, tuple(parts))
    came_from: dict[Key, tuple[Key | None, Step]] = {start: (None, ())}
    frontier = deque([start])
    while frontier and (limit is None or len(came_from) < limit):
        key = frontier.popleft()
        before = build(host, key)
        for event in _events(host, before):
            for after, step in _outcomes(host, before, event):
                if wrong := among_people.wrong(before, after, step):
                    raise Broken("\n".join([*_way(came_from, key), str(step), *wrong]))
                reached = key_of(after)
                if reached in came_from:
                    continue
                came_from[reached] = (key, step)
                frontier.append(reached)
                if wrong := _wrong(host, after):
                    raise Broken("\n".join([*_way(came_from, reached), *wrong]))
    return len(came_from)


def _way(came_from: dict[Key, tuple[Key | None, Step]], key: Key | None) -> list[str]:
    """The shortest way to a state. Sessions are numbered anew at each step, in the order of the key it starts from."""
    lines: list[str] = []
    while key is not None:
        lines.append(str(key))
        key, step = came_from[key]
        lines += [f"  {events} → {effects}" for events, effects in reversed(step)]
    return lines[::-1]


def _wrong(host: Host, state: State) -> list[str]:
    wrong = violations(state)
    if not host.pauses:
        sure = safety.completable(state, list(state.gpus), undisturbed=True)
        wrong += [f"{name} may never end" for name in state.containers.keys() - sure]
        wrong += [f"more of {gpu} is held than there is" for gpu, card in state.gpus.items() if card.held > card.most]
    for container in state.containers.values():
        wrong += [f"{container.id} passes its quota" for gpu, leased in container.leased.items()
                  if leased > container.quota[gpu]]  # fmt: skip
    if len(leaving := [name for name, each in state.containers.items() if each.stage is Stage.LEAVING]) > 1:
        wrong.append(f"{leaving} are all asked to give way at once")
    return wrong + _starved(host, state)


def _starved(host: Host, state: State) -> list[str]:
    """With `fair` and `rotate`: if all holders have held for long, one of them gives way to the first of those due."""
    everybody = state.containers.values()
    moving = any(c.stage in (Stage.LEAVING, Stage.COMING) for c in everybody)
    moving = moving or any(request.awaiting for request in state.waiting)
    fresh = any(c.paused or (c.leased and state.now - c.held_since < LONG) for c in everybody)
    if host.policy != "fair" or host.gives_way is not Mode.ROTATE or moving or fresh or state.reserves:
        return []
    firsts = [
        r for r in state.waiting if all(heads.head(state, gpu) is r for gpu in state.containers[r.container].quota)
    ]
    effects = handle(state, Ticked(state.now))[1]
    preempts = any(isinstance(effect, Preempt) for effect in effects)
    served = {effect.session for effect in effects if isinstance(effect, Granted)}
    return [f"nobody gives way to {request}" for request in firsts if not preempts and request.session not in served]


# ---- what can happen --------------------------------------------------------------------------------------------


def _events(host: Host, state: State) -> Iterator[tuple[Event, ...]]:
    calling = {request.container for request in state.waiting if not request.back}
    for session, container in enumerate(state.containers.values()):
        if container.stands_in:
            continue  # no program of it asks for anything
        for gpu, quota in container.quota.items():
            leased = container.leased.get(gpu, 0)
            if not container.paused:
                if container.id not in calling:
                    for since in _begins(host, state, container):
                        for size in range(1, quota + 1):
                            yield (Needed(NOW, session, 0, gpu, size, since),)
                            yield from _collected(Needed(NOW, session, 0, gpu, size, since, collected=True), leased)
                if gpu in state.pressed:
                    yield from ((Returned(NOW, gpu, {session: amount}),) for amount in range(1, leased + 1))
            if host.changes:
                others = (amount for amount in range(1, host.capacity + 1) if amount != quota)
                yield from ((QuotaChanged(NOW, container.id, {**container.quota, gpu: to}),) for to in others)
        if host.swaps and (container.leased or container.stage is Stage.RETURNING):
            yield (SwappedOut(NOW, container.id),)
            if all(each.stage in (Stage.HERE, Stage.OUT, Stage.RETURNING) for each in state.containers.values()):
                yield (MoveBegun(NOW, container.id),)
        if container.stage in (Stage.LEAVING, Stage.COMING):
            yield ((SwappedOut if container.stage is Stage.LEAVING else CameBack)(NOW, container.id),)
            yield (NotMoved(NOW, container.id, 0.0),)
        if container.stage is Stage.OUT:
            yield (SwapInRequested(NOW, container.id),)
        if container.leased or container.out or container.id in calling | state.expected.containers:
            yield SessionEnded(NOW, session), SessionOpened(NOW, session, container.id)
        if host.pauses:
            yield ((ContainerResumed if container.paused else ContainerPaused)(NOW, container.id),)
        if host.gives_way is not Mode.OFF:
            yield from _moves(host, container)
    holders = [container for container in state.containers.values() if container.leased]
    fresh = host.gives_way in (Mode.ROTATE, Mode.SHARE) and any(NOW - each.held_since < LONG for each in holders)
    young = host.policy == "fair" and any(NOW - request.since < LONG for request in state.waiting)
    if fresh or young or state.expected.containers:
        yield (Ticked(NOW + LONG),)
    if host.policy == "fair" and state.waiting and any(NOW - each.began < fair.STARTING for each in holders):
        yield (Ticked(NOW + fair.STARTING),)
    if host.gives_way is not Mode.OFF and state.waiting:
        yield (Ticked(NOW),)
    if host.restarts and state.waiting and not state.expected.containers:
        yield tuple(_restart(state))
    if host.reserved:
        yield (ReservesChanged(NOW, () if state.reserves else reserves(host)),)
    for gpu, card in state.gpus.items() if host.foreign else ():
        levels = (level for level in range(host.capacity + 1) if level != card.capacity)
        yield from ((GpuSeen(NOW, gpu, level, host.capacity),) for level in levels)


def _collected(needed: Needed, leased: int) -> Iterator[tuple[Event, ...]]:
    """The same where the shell has asked its own container first, and found anything between nothing and all idle."""
    for idle in range(leased + 1):
        yield Returned(NOW, needed.gpu, {needed.session: idle}), needed


def _begins(host: Host, state: State, container: Container) -> tuple[float | None, ...]:
    """Of who asks: now; of who asks again: before all that wait, due or not, or after all that waited before, too."""
    if container.id not in state.expected.containers:
        return (None,)
    return (NOW - 1.0, NOW - 1e-4, *([NOW - LONG - 1.0] if host.policy == "fair" else []))


def _restart(state: State) -> Iterator[Event]:
    """What a new scheduler learns, from nothing. Those who waited ask again, or others do, or time passes."""
    yield from (GpuSeen(NOW, gpu, card.capacity, card.most) for gpu, card in state.gpus.items())
    for session, container in enumerate(state.containers.values()):
        yield ContainerAdded(NOW, container.id, container.quota, container.owner, paused=container.paused, running=True)
        yield SessionOpened(NOW, session, container.id, container.leased)
    yield WaitedBefore(NOW, frozenset(request.container for request in state.waiting), NOW + LONG)


def _moves(host: Host, container: Container) -> Iterator[tuple[Event, ...]]:
    """It becomes idle, or stirs."""
    if container.leased and container.idle_since is None:
        yield (Idle(NOW, container.id, NOW),)
    if container.idle_since is not None or container.stage is Stage.OUT:
        yield (ActivityDetected(NOW, container.id),)


def _outcomes(host: Host, state: State, events: tuple[Event, ...]) -> Iterator[tuple[State, Step]]:
    """Every way in which this can go on until the arbiter has settled."""
    for _ in _chances(host, state, events):
        after = State(policy=host.policy) if isinstance(events[-1], WaitedBefore) else state
        effects: list[Effect] = []
        for event in events:
            after, more = handle(after, event)
            effects += more
        take_back = [effect.gpu for effect in effects if isinstance(effect, TakeBack)]
        yield from _answered(after, take_back, ((events, tuple(effects)),))


def _answered(state: State, take_back: Sequence[str], step: Step) -> Iterator[tuple[State, Step]]:
    """Answers TakeBack in every way: each session had used anything between nothing and all of its lease."""
    if not take_back:
        yield state, step
        return
    gpu, *others = take_back
    holders = [(key, session.leased[gpu]) for key, session in state.sessions.items() if gpu in session.leased]
    for idle in product(*(range(leased + 1) for _, leased in holders)):
        taken = {key: amount for (key, _), amount in zip(holders, idle, strict=True) if amount}
        answer = Returned(state.now, gpu, taken, all=True)
        after, effects = handle(state, answer)
        more = [effect.gpu for effect in effects if isinstance(effect, TakeBack)]
        yield from _answered(after, [*others, *more], (*step, ((answer,), effects)))


def _chances(host: Host, state: State, events: Sequence[Event]) -> Iterator[None]:
    """Every way in which lots and elections can come out."""
    for _ in _lots(host, state):
        yield from among_people.elections(state, events)


def _lots(host: Host, state: State) -> Iterator[None]:
    """For `random`: every order in which lots can fall."""
    if host.policy != "random":
        yield
        return
    real = policies.POLICIES["random"]
    try:
        for rank in permutations(range(len(host.quotas))):

            def by_rank(
                state: State, gpu: str, waiting: Sequence[Request], rank: tuple[int, ...] = rank
            ) -> list[Request]:
                return sorted(waiting, key=lambda request: rank[request.session])

            policies.POLICIES["random"] = replace(real, order=by_rank)
            yield
    finally:
        policies.POLICIES["random"] = real
