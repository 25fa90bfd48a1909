"""What must not be, of a host with planned launches and reservations: `planned_explorer.py` says what."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from benchmarks.simulation.exploring.among_people import Step
from benchmarks.simulation.exploring.explorer import _wrong
from benchmarks.simulation.exploring.keys import LONG
from benchmarks.simulation.exploring.planned_lab import Lab, Play, arrives, is_ready, starts, without
from scheduler.core import reserved, safety
from scheduler.core.arbiter import handle
from scheduler.core.effects import Granted, TakeBack
from scheduler.core.events import (
    CameBack,
    ContainerEnded,
    Event,
    Needed,
    ReservesChanged,
    Returned,
    SwapInRequested,
    SwappedOut,
    Ticked,
)
from scheduler.core.planned.order import Candidate, Shape
from scheduler.core.state import Reserve, Stage, State


def wrong_step(before: Play, after: Play, step: Step) -> Iterator[str]:
    for name in after.started.keys() - before.started.keys():
        its = after.started[name]
        for gpu, quota in its.quota.items():
            if quota > (free := _free(before, gpu, its.owner)):
                yield f"{name} begins on {gpu} with {quota}, and {free} is free for it"
            if _waits(before.state, gpu) and quota > _own(before, gpu, its.owner):
                yield f"{name} begins on {gpu}, where others wait"
    state = after.state
    for effect in (effect for _, effects in step for effect in effects if isinstance(effect, Granted)):
        owner = state.containers[effect.container].owner
        if (free := _free(replace(after, started={}), effect.gpu, owner)) < 0:
            yield f"{effect.container} is granted {-free} of {effect.gpu} that is reserved for others"


def _held(play: Play, gpu: str) -> Counter[str]:
    """Person → what containers of theirs hold there, or were promised."""
    found, state = Counter[str](), play.state
    for name, container in state.containers.items():
        promise = play.started[name].quota.get(gpu, 0) if name in play.started else 0
        found[container.owner] += max(container.leased.get(gpu, 0), promise)
    for name, its in play.started.items():
        if name not in state.containers:
            found[its.owner] += its.quota.get(gpu, 0)
    return found


def _kept(play: Play, gpu: str) -> Counter[str]:
    found = Counter[str]()
    for each in play.state.reserves:
        if each.gpu == gpu and each.is_kept:
            found.update(dict.fromkeys(each.people, each.bytes))
    return found


def _free(play: Play, gpu: str, owner: str) -> float:
    """By plain sums, where each reservation is one person's. Nothing that is kept for a person can be promised away."""
    held, kept = _held(play, gpu), _kept(play, gpu)
    for_others = sum(max(0, size - held[who]) for who, size in kept.items() if who != owner)
    return max(_own(play, gpu, owner), play.state.gpus[gpu].capacity - held.total() - for_others)


def _own(play: Play, gpu: str, owner: str) -> float:
    held = _held(replace(play, started={name: its for name, its in play.started.items() if its.owner == owner}), gpu)
    for_others = sum(max(0, size - held[who]) for who, size in _kept(play, gpu).items() if who != owner)
    free = play.state.gpus[gpu].capacity - held.total() - for_others
    return max(0, min(free, _kept(play, gpu)[owner] - held[owner])) if _kept(play, gpu)[owner] else -inf


def _waits(state: State, gpu: str) -> bool:
    return any(each.gpu == gpu and not safety.put_by(state.containers[each.container]) for each in state.waiting)


def wrong_state(lab: Lab, play: Play) -> list[str]:
    found = [*_wrong(lab.host, play.state), *_for_ever(lab, play)]
    if lab.policy == "fair":
        found += _late_calls(lab, play)
        found += _late_plans(lab, play) if lab.turns else ()
    return found


def _for_ever(lab: Lab, play: Play) -> Iterator[str]:
    """Who waits though all reservations are over and whoever could end has ended."""
    play = _ended_reserves(play, lambda _: True)
    for name in sorted(play.asked):
        play = is_ready(lab, play, name)
    for _ in range(4 * len(lab.jobs) + 4):
        play = _look(lab, _do(play, Ticked(play.state.now + LONG)))
        if (ends := next(_can_end(play.state), None)) is None:
            break
        play = _end(play, ends)
    left = [*play.state.containers, *(each.id for each in play.queue), *play.started]
    if left:
        yield f"{left} wait for ever"


def _late_calls(lab: Lab, play: Play) -> Iterator[str]:
    for head in {each.container: each for each in play.state.people.heads.values()}.values():
        container = play.state.containers[head.container]
        if safety.put_by(container) or any(
            (its := play.state.people.heads.get(gpu)) is None or its.container != container.id
            for gpu in container.quota
        ):
            continue
        then = _look(lab, _do(_beside(play, container.owner, container.quota), Ticked(play.state.now)))
        holders = [name for name, each in then.state.containers.items() if each.leased and name != container.id]
        for name in [*holders, *(each for each in play.started if each not in play.state.containers)]:
            then = _end(_look(lab, _launch_all(lab, then)), name)
        if any((r.session, r.serial) == (head.session, head.serial) for r in then.state.waiting):
            yield f"{container.id}, head, still waits when {holders} have ended"


def _late_plans(lab: Lab, play: Play) -> Iterator[str]:
    for due in play.queue:
        if play.state.now - due.since < LONG:
            continue
        then = _beside(play, due.owner, dict.fromkeys(play.state.gpus, due.shape.quota))
        for call in play.state.waiting:  # they go first, and may wait for a reservation's end
            container = play.state.containers[call.container]
            then = _beside(then, container.owner, container.quota)
        passed = Counter[str]()
        for _ in range(4 * len(lab.jobs) + 4):
            then = _look(lab, _do(then, Ticked(then.state.now)), passed, due.id)
            if not any(each.id == due.id for each in then.queue):
                break
            if (name := next(_can_end(then.state), None)) is None:
                break
            then = _end(then, name)
        del passed[due.owner]
        if any(each.id == due.id for each in then.queue):
            yield f"{due.id} is due and never begins"
        if most := [name for name, times in passed.items() if times > 1]:
            yield f"{due.id} is due, and {most} begin twice before it"


# ---- how it goes on, if nothing comes back but by an end ----------------------------------------------------------


def _do(play: Play, *events: Event) -> Play:
    state, pending = play.state, deque(events)
    while pending:
        state, effects = handle(state, pending.popleft())
        pending.extend(Returned(state.now, each.gpu, {}, all=True) for each in effects if isinstance(each, TakeBack))
        for name, each in state.containers.items():
            if each.stage is Stage.LEAVING and not pending:
                pending.append(SwappedOut(state.now, name))
            elif each.stage is Stage.COMING and not pending:
                pending.append(CameBack(state.now, name))
    return replace(play, state=state)


def _end(play: Play, name: str) -> Play:
    return _do(without(play, name), ContainerEnded(play.state.now, name))


def _can_end(state: State) -> Iterator[str]:
    waiting = {each.container for each in state.waiting}
    return (name for name in state.containers if name not in waiting)


def _ended_reserves(play: Play, which: Callable[[Reserve], bool]) -> Play:
    left = tuple(each for each in play.state.reserves if not which(each))
    return _do(play, ReservesChanged(play.state.now, left)) if left != play.state.reserves else play


def _beside(play: Play, owner: str, quota: Mapping[str, int]) -> Play:
    """Without what is reserved for others on these cards, where it leaves no room."""

    def full(gpu: str) -> bool:
        others = reserved.of_others(play.state, gpu, owner)
        return gpu in quota and quota[gpu] + others > play.state.gpus[gpu].capacity

    return _ended_reserves(play, lambda each: owner not in each.people and full(each.gpu))


def _comes(lab: Lab, play: Play, names: Iterable[str]) -> Play:
    """They arrive, and ask for all that they may have."""
    for name in names:
        play = _do(play, *arrives(lab, play, name))
        (session,) = play.state.containers[name].sessions
        for serial, (gpu, quota) in enumerate(play.state.containers[name].quota.items()):
            play = _do(play, Needed(play.state.now, session, serial, gpu, quota))
    return play


def _launch_all(lab: Lab, play: Play) -> Play:
    return _comes(lab, play, [name for name in lab.jobs if name.startswith("l") and name not in play.state.containers])


def _look(lab: Lab, play: Play, begun: Counter[str] | None = None, until: str = "") -> Play:
    """Those who are out are asked back, all that may begin begin, and are planned once more if `begun` is counted."""
    for name, each in play.state.containers.items():
        if each.stage is Stage.OUT:
            play = _do(play, SwapInRequested(play.state.now, name))
    play = _comes(lab, play, [name for name in play.started if name not in play.state.containers])
    while (found := next(starts(lab, play), None)) is not None:
        name, play = found
        play = _comes(lab, play, [name])
        if name == until:
            break
        if begun is not None:
            begun[lab.jobs[name].owner] += 1
            again = Candidate(f"{name}'", lab.jobs[name].owner, play.state.now, Shape(lab.jobs[name].units), number=inf)
            play = replace(play, queue=(*play.queue, again)) if name[-1] != "'" else play
    return play
