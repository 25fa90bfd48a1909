"""What is true of every state that the arbiter hands out. The tests and the explorer check it after every event."""

from collections.abc import Iterator

from scheduler.core import changes, expected, moves, reserved, safety
from scheduler.core.people import heads
from scheduler.core.people.ledger import Meter, Side
from scheduler.core.people.tree import ROOT
from scheduler.core.policies import POLICIES
from scheduler.core.state import Container, Stage, State


def violations(state: State) -> list[str]:
    """One sentence for each thing that is wrong; empty for every state that can come about."""
    return [*_sums(state), *_queue(state), *_flags(state), *_people(state), *_stuck(state)]


def _sums(state: State) -> Iterator[str]:
    for container in state.containers.values():
        total: dict[str, int] = {}
        for key in container.sessions:
            for gpu, amount in state.sessions[key].leased.items():
                total[gpu] = total.get(gpu, 0) + amount
                if amount <= 0:
                    yield f"session {key} is leased {amount} of {gpu}"
        if total != dict(container.leased):
            yield f"{container.id} is leased {dict(container.leased)}, its sessions {total}"
        yield from _outs(state, container)
        if container.stands_in and (container.sessions or container.leased):
            yield f"{container.id} is not there yet, and has processes or memory"
        if container.killed and container.paused:
            yield f"{container.id} is killed and paused"
        if container.out and container.stage not in (Stage.OUT, Stage.RETURNING):
            yield f"{container.id} has {dict(container.out)} out, and its stage is {container.stage!r}"
        if container.stage is Stage.OUT and not (container.out or container.paused or container.killed):
            yield f"{container.id} has nothing out, and is not brought back"
        for gpu in container.leased.keys() - container.quota.keys():
            yield f"{container.id} is leased memory of {gpu}, where it has no quota"
    for key, session in state.sessions.items():
        if key != session.id or key not in state.containers[session.container].sessions:
            yield f"session {key} and container {session.container} do not know each other"
    for gpu, card in state.gpus.items():
        members = [name for name, each in state.containers.items() if gpu in each.quota]
        held = sum(safety.held(state.containers[name], gpu) for name in members)
        if held != card.held:
            yield f"{gpu} has {card.held} held, not {held}"
        if sorted(members) != sorted(card.members):
            yield f"{gpu} has members {card.members}, not {members}"
    spanning = [name for name, each in state.containers.items() if len(each.quota) > 1]
    if sorted(spanning) != sorted(state.spanning):
        yield f"spanning is {state.spanning}, not {spanning}"


def _outs(state: State, container: Container) -> Iterator[str]:
    """What is swapped out, and what of it is asked back."""
    total: dict[str, int] = {}
    for key in container.sessions:
        for gpu, amount in state.sessions[key].out.items():
            total[gpu] = total.get(gpu, 0) + amount
            asked = sum(r.back and (r.session, r.gpu, r.bytes) == (key, gpu, amount) for r in state.waiting)
            if asked != (container.stage is Stage.RETURNING):
                yield f"{amount} of session {key} on {gpu} are out, and asked back {asked} times"
    if total != dict(container.out):
        yield f"{container.id} has {dict(container.out)} out, its sessions {total}"


def _queue(state: State) -> Iterator[str]:
    keys = [(request.session, request.serial) for request in state.waiting]
    if len(keys) != len(set(keys)):
        yield f"a call waits twice: {keys}"
    for request in state.waiting:
        session, container = state.sessions.get(request.session), state.containers.get(request.container)
        if container is not None and container.stands_in:
            if request.session >= 0 or container.guaranteed:
                yield f"a call of a stand-in waits, and has a process, or all that it may have: {request}"
        elif session is None or container is None or session.container != container.id:
            yield f"a call of nobody waits: {request}"
        elif container.killed:
            yield f"a call of {container.id} waits, which is killed"
        elif not 0 < request.bytes <= container.quota[request.gpu] and not request.back:
            yield f"a call waits for {request.bytes} of a quota of {container.quota[request.gpu]}"
        if not request.suspended and not request.awaiting:
            yield f"a call is neither suspended nor awaiting headroom: {request}"
        if request.since > state.now:
            yield f"a call has waited since {request.since}, and it is {state.now}"
    placed = [request.placed for request in state.waiting]
    if placed != sorted(placed, reverse=True):
        yield "a call that was placed waits behind one that was not"


def _flags(state: State) -> Iterator[str]:
    pressed = set(safety.linked(state, reserved.pressed(state)))
    if pressed != state.pressed:
        yield f"the pressure flags are {set(state.pressed)}, not {pressed}"
    if state.calm and not safety.calm(state):
        yield "the state is called calm and is not"
    for name in state.expected.containers:
        if name not in state.containers or state.containers[name].killed or not state.containers[name].sessions:
            yield f"{name} is expected to ask again, and cannot"
        if any(request.container == name for request in state.waiting):
            yield f"{name} is expected to ask again, and has"
        if state.now >= state.expected.until:
            yield f"{name} is expected still, although its time is over"
    if state.policy not in POLICIES:
        yield f"there is no policy {state.policy}"


def _people(state: State) -> Iterator[str]:
    """The ledger's rates are what people hold and wait for, and each card with a due call has a head."""
    people, anew = state.people, changes.counted(state)
    if people.owners != anew.owners:
        yield f"the owners are {people.owners}, not {anew.owners}"
    for gpu in people.meters.keys() | anew.meters.keys():
        known, right = _rates(people.meters.get(gpu)), _rates(anew.meters.get(gpu))
        if known != right:
            yield f"the meter of {gpu} counts {known}, not {right}"
    due = [
        r
        for r in state.waiting
        if not safety.put_by(state.containers[r.container]) and heads.due(state, r) <= state.now
    ]
    for gpu in state.gpus:
        its = {(r.session, r.serial) for r in due if gpu in state.containers[r.container].quota}
        head = people.heads.get(gpu)
        if (its and head is None) or (head and (head.session, head.serial) not in its):
            yield f"the head of {gpu} is {head}, and those due are {its}"
        near = [other for card, other in people.heads.items() if head and (other.session, other.serial) in its]
        if head and head.number > min(other.number for other in near):
            yield f"{head} is before {near} on {gpu}, which were elected earlier"


def _rates(meter: Meter | None) -> dict[str, object]:
    sides = {ROOT: Side(), **(meter.sides if meter else {})}
    held: dict[str, object] = {
        name: (each.shares, each.held) for name, each in sides.items() if each.shares or not name
    }
    people = meter.people.items() if meter else ()
    return held | {f"person {name}": (each.held, each.calls) for name, each in people if each.there}


def _stuck(state: State) -> Iterator[str]:
    """No deadlock: where nobody who holds memory runs, nobody who waits could be given any, now or ever."""
    gpus = safety.linked(state, state.gpus)
    waiting = {r.container for r in state.waiting if not safety.put_by(state.containers[r.container])}
    moving = moves.is_moving(state)
    settling = any(request.awaiting or expected.holds_up(state, request) for request in state.waiting)
    holding_back = any(reserved.kept(state, gpu) for gpu in gpus)  # to the reservation's end at the latest
    if not waiting or moving or settling or holding_back:  # each for a bounded time
        return
    sure = safety.completable(state, gpus)
    running = {name for name in sure - waiting if safety.holds(state.containers[name])}
    if not running and sure & waiting:
        yield f"{sorted(sure & waiting)} could end, but nobody runs and nobody is given anything"
