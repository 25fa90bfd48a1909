"""What is explored, and each of its states as a key: what two states that go on alike have in common (explorer.py)."""

from dataclasses import dataclass, replace
from math import inf

from benchmarks.simulation.exploring import among_people
from scheduler.core import changes, fair, reserved, safety
from scheduler.core.people import heads
from scheduler.core.people.ledger import People
from scheduler.core.people.tree import Tree
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


@dataclass(frozen=True, slots=True)
class Host:
    """What is explored. `quotas`: for each container its quota on each GPU, 0 for none. `owners`: whose each is.
    `group`: so many of these people, the first ones, are one group."""

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
    group: int = 0
    reserved: int = 0  # of each GPU, for the first person: it begins and ends at any moment

    @property
    def gpus(self) -> int:
        return len(self.quotas[0])


def reserves(host: Host) -> tuple[Reserve, ...]:
    """In force, and used so lately that it is not lent."""
    people = frozenset([""])
    return tuple(
        Reserve("r", f"g{gpu}", host.reserved, people, NOW - 1, NOW + 2 * LONG, seen=NOW, is_kept=True)
        for gpu in range(host.gpus)
    )


def key_of(state: State) -> Key:
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
        reserves=reserves(host) if len(capacities) > host.gpus else (),
    )
    pressed = frozenset(safety.linked(state, reserved.pressed(state)))
    tree = Tree({str(owner or ""): "group" for owner in range(host.group)}, {"group": 1.0} if host.group else {})
    people = changes.counted(replace(state, people=People(tree)))
    state = replace(state, pressed=pressed, calm=safety.calm(state), people=people)
    return among_people.with_heads(state, [places for *_, places in parts])
