"""Who gives way to a reservation, and how long before it begins.

Whoever holds memory on its GPU and has no right to it, and can be moved: idle ones first, then as `moves/preemption.py`
ranks them; only as many as it lacks bytes. They are moved one after the other, so all of it is there at the begin if
the first move begins so long before: the measured time of all these moves, half as much again, and MARGIN. Each comes
back by itself when there is room: at the latest when the reservation has ended.

Whoever cannot be moved stays, and the reservation begins short; or, where it says so, they end (`in_the_way`).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from scheduler.core import moves, reserved
from scheduler.core.effects import Preempt
from scheduler.core.moves import preemption
from scheduler.core.state import Container, Mode, Reserve, State

MARGIN = 10.0  # seconds: a move is begun between two looks, and the first of a program is slower
SLOWER = 1.5
AHEAD = 3600.0  # seconds before a begin in which its moves are reckoned with


def lead(state: State) -> float:
    """Seconds by which the next reservations are kept before they begin."""
    near = [each for each in state.reserves if each.begins - state.now <= AHEAD]
    if not near:
        return 0.0
    then = replace(state, reserves=tuple(replace(each, is_kept=True) for each in near))
    rule = state.preemption
    going = {each.id: each for gpu in reserved.short_gpus(then) for each in _going(then, gpu)}.values()
    seconds = sum(rule.least + moves.size(each) / rule.out for each in going)
    return MARGIN + SLOWER * seconds


def next_to_go(state: State) -> Preempt | None:
    """The next to be moved out for a reservation, if one lacks something. To be asked while nobody moves."""
    for reserve in _lacking(state):
        if going := _going(state, reserve.gpu):
            return Preempt(going[0].id, reserve.id, Mode.BOOKED)
    return None


def in_the_way(state: State) -> dict[str, str]:
    """Containers that are to end for reservations that have begun short and say so → the reservation."""
    if moves.is_moving(state):
        return {}
    return {
        container.id: reserve.id
        for reserve in _lacking(state)
        if reserve.ends_others and reserve.begins <= state.now and not _going(state, reserve.gpu)
        for container in _enough(state, reserve.gpu, _others(state, reserve.gpu, lambda each: not each.killed))
    }


def movable(state: State, gpu: str) -> int:
    """Bytes that come free on a GPU once all that are to be moved for what lacks there are out."""
    return sum(each.leased[gpu] for each in _going(state, gpu))


def _lacking(state: State) -> list[Reserve]:
    gpus = reserved.short_gpus(state) if state.reserves else set()
    return sorted(
        (each for each in state.reserves if each.gpu in gpus and each.is_kept), key=lambda r: (r.begins, r.id)
    )


def _going(state: State, gpu: str) -> list[Container]:
    """Those that are to be moved, the first to go first."""
    if not state.preemption.able:
        return []
    able = _others(state, gpu, lambda each: preemption.may_go(state, each))
    return _enough(state, gpu, able, moves.host_room(state))


def _others(state: State, gpu: str, able: Callable[[Container], bool]) -> list[Container]:
    """Holders there without a right, ranked."""
    with_right = reserved.people_of(state, gpu)
    there = (state.containers[name] for name in state.gpus[gpu].members)
    found = [each for each in there if each.leased.get(gpu, 0) and each.owner not in with_right and able(each)]
    return sorted(found, key=lambda each: preemption.rank(state, each))


def _enough(state: State, gpu: str, ranked: Iterable[Container], room: float = float("inf")) -> list[Container]:
    """The first of them that make up what is lacking, less whom it does not take; all if they do not. `room`: bytes of
    host memory that they may fill together."""
    lacks, chosen = reserved.short(state, gpu), list[Container]()
    for each in ranked:
        if lacks > 0 and (size := moves.size(each)) <= room:
            chosen.append(each)
            lacks -= each.leased[gpu]
            room -= size
    for each in reversed(list(chosen)):
        if lacks + each.leased[gpu] <= 0:
            chosen.remove(each)
            lacks += each.leased[gpu]
    return chosen
