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

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations, product
from math import inf

from benchmarks.simulation.exploring import among_people
from scheduler.core import changes, fair, policies, reserved, safety
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
from scheduler.core.state import Container, Expected, Gpu, Mode, Preemption, Request, Reserve, Session, Stage, State

LONG = heads.PATIENCE  # one jump of the clock: whoever waits becomes due
NOW = 10 * LONG

# A call in a key: its place in the queue, gpu, bytes, due, whether it is for what was swapped out, and whether it was
# asked anew while others were expected. One that is expected is a call of no bytes.
Call = tuple[int, int, int, bool, bool, bool]
# What giving way and starting rest on, in a key: idle, has held for long, its stage, has just begun to hold.
Moves = tuple[bool, bool, Stage, bool]
STILL: Moves = (False, False, Stage.HERE, False)
# A container in a key: quota, lease and what is swapped out by GPU, paused, what giving way rests on, and its calls.
# Last its owner, and for each GPU its place among all heads if it is head there, else 0.
Part = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool, Moves, tuple[Call, ...], int, tuple[int, ...]]
# The capacity of each GPU now, and one more figure while the reservation is in force; and the containers.
Key = tuple[tuple[int, ...], tuple[Part, ...]]

# Events handed in together, and their effects; an answer to TakeBack follows as another pair.
Step = tuple[tuple[tuple[Event, ...], tuple[Effect, ...]], ...]


@dataclass(frozen=True, slots=True)
class Host:
    """What is explored. `quotas`: for each container its quota on each GPU, 0 for none. `owners`: whose each is."""

    capacity: int
    quotas: tuple[tuple[int, ...], ...]
    policy: str
    pauses: bool = False
    changes: bool = False
    swaps: bool = False
    gives_way: Mode = Mode.OFF
    restarts: bool = False
    foreign: bool = False
    owners: tuple[int, ...] = ()
    reserved: int = 0  # of each GPU, for the first person: it begins and ends at any moment

    @property
    def gpus(self) -> int:
        return len(self.quotas[0])


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
                reached = _key(after)
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
        wrong.append(f"{leaving} are all told to give way at once")
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
    told = any(isinstance(effect, Preempt) for effect in effects)
    served = {effect.session for effect in effects if isinstance(effect, Granted)}
    return [f"nobody gives way to {request}" for request in firsts if not told and request.session not in served]


# ---- what can happen --------------------------------------------------------------------------------------------


def _events(host: Host, state: State) -> Iterator[tuple[Event, ...]]:
    calling = {request.container for request in state.waiting if not request.back}
    for session, container in enumerate(state.containers.values()):
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
        yield (ReservesChanged(NOW, () if state.reserves else _reserves(host)),)
    for gpu, card in state.gpus.items() if host.foreign else ():
        levels = (level for level in range(host.capacity + 1) if level != card.capacity)
        yield from ((GpuSeen(NOW, gpu, level, host.capacity),) for level in levels)


def _reserves(host: Host) -> tuple[Reserve, ...]:
    """In force, and used so lately that it is not lent."""
    people = frozenset([""])
    return tuple(
        Reserve("r", f"g{gpu}", host.reserved, people, NOW - 1, NOW + 2 * LONG, seen=NOW, is_kept=True)
        for gpu in range(host.gpus)
    )


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
    """What a new scheduler is told, from nothing. Those who waited ask again, or others do, or time passes."""
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
    for _ in _chances(host, state):
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


def _chances(host: Host, state: State) -> Iterator[None]:
    """Every way in which lots and elections can come out."""
    for _ in _lots(host, state):
        yield from among_people.elections(state)


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


# ---- states and keys --------------------------------------------------------------------------------------------


def _key(state: State) -> Key:
    gpus = list(state.gpus)
    calls: dict[str, list[Call]] = {name: [] for name in state.containers}
    for place, request in enumerate(state.waiting):
        due = state.now - request.since >= LONG
        if state.policy == "random":
            place = 0  # it asks for no order
        anew = bool(state.expected.containers) and request.since >= state.expected.began
        calls[request.container].append((place, gpus.index(request.gpu), request.bytes, due, request.back, anew))
    for name in state.expected.containers:
        calls[name].append((0, 0, 0, False, False, False))
    parts = sorted(
        (
            tuple(container.quota.get(gpu, 0) for gpu in gpus),
            tuple(container.leased.get(gpu, 0) for gpu in gpus),
            tuple(container.out.get(gpu, 0) for gpu in gpus),
            container.paused,
            _rests_on(state, container),
            tuple(calls[container.id]),
            int(container.owner or 0),
            among_people.places(state, container.id),
        )
        for container in state.containers.values()
    )
    return (*(card.capacity for card in state.gpus.values()), *([1] if state.reserves else [])), tuple(parts)


def _rests_on(state: State, container: Container) -> Moves:
    mode = state.preemption.mode
    starts = state.policy == "fair" and bool(container.leased) and state.now - container.began < fair.STARTING
    if mode is Mode.OFF:
        return False, False, container.stage, starts
    long = mode in (Mode.ROTATE, Mode.SHARE) and bool(container.leased) and state.now - container.held_since >= LONG
    return container.idle_since is not None, long, container.stage, starts


def build(host: Host, key: Key) -> State:
    """The state that a key stands for, settled."""
    gpus = [f"g{index}" for index in range(host.gpus)]
    containers, sessions, calls, others = {}, {}, [], set()
    capacities, parts = key
    places = sum(len(its) for *_, its, _, _ in parts)
    for session, (quota, leased, out, paused, (idle, long, stage, starts), its, owner, _) in enumerate(parts):
        name = "ABCDEFGH"[session]
        holds = {gpu: amount for gpu, amount in zip(gpus, leased, strict=True) if amount}
        promised = {gpu: amount for gpu, amount in zip(gpus, quota, strict=True) if amount}
        away = {gpu: amount for gpu, amount in zip(gpus, out, strict=True) if amount}
        containers[name] = Container(
            name, promised, str(owner or ""), paused=paused, leased=holds, sessions=(session,), out=away,
            stage=stage, held_since=NOW - LONG * long, idle_since=NOW if idle else None,
            began=NOW if starts else -inf,
        )  # fmt: skip
        sessions[session] = Session(session, name, holds, away)
        for place, gpu, amount, due, back, anew in its:
            if not amount:
                others.add(name)
                continue
            since = NOW if anew else NOW - (LONG if due else 0) - (places - place) / 1000
            serial = -1 - gpu if back else 0
            calls.append((place, Request(session, serial, name, gpus[gpu], amount, since, suspended=True, back=back)))
    state = State(
        gpus={
            gpu: Gpu(
                gpu,
                capacity,
                host.capacity,
                members=tuple(name for name, container in containers.items() if gpu in container.quota),
                held=sum(container.leased.get(gpu, 0) for container in containers.values()),
            )
            for gpu, capacity in zip(gpus, capacities[: host.gpus], strict=True)
        },
        containers=containers,
        sessions=sessions,
        waiting=tuple(request for _, request in sorted(calls, key=lambda each: each[0])),
        spanning=tuple(name for name, container in containers.items() if len(container.quota) > 1),
        expected=Expected(frozenset(others), NOW, NOW + LONG) if others else Expected(),
        policy=host.policy,
        preemption=Preemption(host.gives_way, idle=0.0, rotate=LONG, out=inf, back=inf, least=0.0),
        now=NOW,
        reserves=_reserves(host) if len(capacities) > host.gpus else (),
    )
    pressed = frozenset(safety.linked(state, reserved.pressed(state)))
    state = replace(state, pressed=pressed, calm=safety.calm(state), people=changes.counted(state))
    return among_people.with_heads(state, [places for *_, places in parts])
