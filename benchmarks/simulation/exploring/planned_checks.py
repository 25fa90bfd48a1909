"""What must not be, of a host with planned launches and reservations: `planned_explorer.py` says what."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from benchmarks.simulation.exploring.among_people import Step
from benchmarks.simulation.exploring.explorer import _wrong
from benchmarks.simulation.exploring.keys import LONG
from benchmarks.simulation.exploring.planned_lab import Lab, Play, arrives, is_ready, next_step, starts, without
from scheduler.core import reserved, safety
from scheduler.core.arbiter import handle
from scheduler.core.effects import Granted, Served, TakeBack
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
from scheduler.core.state import Reserve, Stage, State


def wrong_step(before: Play, after: Play, step: Step) -> Iterator[str]:
    """What was granted or promised that is reserved for others, or not there."""
    state = after.state
    for effect in (effect for _, effects in step for effect in effects if isinstance(effect, Served)):
        container = state.containers[effect.container]
        if (known := before.state.containers.get(container.id)) and known.guaranteed:
            continue  # it was promised before a reservation began
        for gpu in [effect.gpu] if isinstance(effect, Granted) else container.quota:
            held, kept = _held(state, gpu), Counter[str]()
            for each in state.reserves:
                if each.gpu == gpu and each.is_kept:
                    kept.update(dict.fromkeys(each.people, each.bytes))
            others = sum(max(0, size - held[who]) for who, size in kept.items() if who != container.owner)
            if (lacks := held.total() + others - state.gpus[gpu].capacity) > 0:
                yield f"{container.id} is given {lacks} of {gpu} that is reserved for others"


def _held(state: State, gpu: str) -> Counter[str]:
    """Person → what containers of theirs hold there, or were promised. Each reservation is one person's."""
    found = Counter[str]()
    for container in state.containers.values():
        found[container.owner] += container.quota.get(gpu, 0) if container.guaranteed else container.leased.get(gpu, 0)
    return found


def wrong_state(lab: Lab, play: Play) -> list[str]:
    found = [*_wrong(lab.host, play.state), *_for_ever(lab, play)]
    then = _look(lab, play)
    for name in then.state.containers.keys() - {*then.started, *(each.id for each in then.queue)}:
        found += [f"{name} stands in the queue for nothing"] if then.state.containers[name].stands_in else []
    if lab.policy == "fair":
        found += [*_late_calls(lab, play), *_late_plans(lab, play)]
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
        holders = [name for name, each in then.state.containers.items() if safety.holds(each) and name != container.id]
        for name in holders:
            then = _end(_look(lab, _launch_all(lab, then)), name)
        if any(tuple(head[:3]) == (r.session, r.serial, r.container) for r in then.state.waiting):
            yield f"{container.id}, head, still waits when {holders} have ended"


def _late_plans(lab: Lab, play: Play) -> Iterator[str]:
    for due in play.queue:
        if play.state.now - due.since < LONG:
            continue
        then = _beside(play, due.owner, dict.fromkeys(play.state.gpus, due.shape.quota))
        for call in play.state.waiting:  # they may go first, and wait for a reservation's end
            container = play.state.containers[call.container]
            then = _beside(then, container.owner, container.quota)
        for _ in range(6 * len(lab.jobs) + 6):
            then = _look(lab, _launch_all(lab, _do(then, Ticked(then.state.now))))
            if due.id in then.started or (name := next(_can_end(then.state), None)) is None:
                break
            then = _end(then, name)
        if due.id not in then.started:
            yield f"{due.id} is due and does not begin, as others come again and again"


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
    return (name for name, each in state.containers.items() if name not in waiting and not each.stands_in)


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


def _look(lab: Lab, play: Play) -> Play:
    """Those who are out are asked back, and all that may begin begin."""
    for name, each in play.state.containers.items():
        if each.stage is Stage.OUT:
            play = _do(play, SwapInRequested(play.state.now, name))
    while True:
        play = _comes(lab, play, [name for name in play.started if not _is_there(play.state, name)])
        if (event := next_step(play)) is not None:
            play = _do(play, event)
        elif (found := next(starts(play), None)) is not None:
            _, play = found
        else:
            return play


def _is_there(state: State, name: str) -> bool:
    return name in state.containers and not state.containers[name].stands_in
