"""A container's memory leaves its cards and comes back, and what that depends on."""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from scheduler.core import changes, moves
from scheduler.core.effects import Reason
from scheduler.core.events import (
    ActivityDetected,
    CameBack,
    Idle,
    Movable,
    MoveBegun,
    NotMoved,
    PreemptionChanged,
    StaysOnCard,
    SwapInRequested,
    SwappedOut,
)
from scheduler.core.state import Container, Stage, State
from scheduler.core.step import Handlers, Step


def _move_begun(step: Step, event: MoveBegun) -> None:
    known = step.state.containers.get(event.container)
    if known and not known.killed:
        step.state = changes.put_container(step.state, moves.moved(known, MoveBegun))


def _swapped_out(step: Step, event: SwappedOut) -> None:
    if known := step.state.containers.get(event.container):
        step.call_off(known)
        step.state = changes.put_out(step.state, known.id)
        step.timely = True
        undone = known.stage is Stage.LEAVING and known.idle_since is None
        if event.cards and event.cards.keys() <= known.quota.keys() and _are_others(step.state, known, event.cards):
            step.state = changes.reassign(step.state, known.id, event.cards)
            step.touched.update(step.state.containers[known.id].quota)
            step.disturbed = True
            undone = known.stage is not Stage.OUT  # one that rests in host memory rests on
        if (undone or not step.state.containers[known.id].out) and not known.paused:
            since = known.place if event.cards else step.state.now
            step.swap_in(known.id, min(since, step.state.now))  # or what it held has ended: nothing of it is out


def _are_others(state: State, container: Container, cards: Mapping[str, str]) -> bool:
    new = set(cards.values())
    return len(new) == len(cards) and new <= state.gpus.keys() and new.isdisjoint(container.quota)


def _swap_in_requested(step: Step, event: SwapInRequested) -> None:
    if event.container in step.state.containers:
        since = step.state.now if event.since is None or not isfinite(event.since) else event.since
        step.swap_in(event.container, min(since, step.state.now))


def _came_back(step: Step, event: CameBack) -> None:
    if known := step.state.containers.get(event.container):
        step.put(replace(moves.moved(known, CameBack), held_since=step.state.now))
        step.judge_again(known.id)
        step.timely = True


def _not_moved(step: Step, event: NotMoved) -> None:
    known = step.state.containers.get(event.container)
    if known and event.seconds >= 0:
        step.put(replace(moves.moved(known, NotMoved), stays_until=step.state.now + event.seconds))
        step.judge_again(known.id)
        step.timely = True


def _movable(step: Step, event: Movable) -> None:
    if known := step.state.containers.get(event.container):
        step.state = changes.put_container(step.state, replace(known, movable=event.movable))


def _stays_on_card(step: Step, event: StaysOnCard) -> None:
    if known := step.state.containers.get(event.container):
        step.state = changes.put_container(step.state, replace(known, relocatable=False))


def _idle(step: Step, event: Idle) -> None:
    known = step.state.containers.get(event.container)
    asks = any(request.container == event.container for request in step.state.waiting)
    if known and known.leased and known.stage is Stage.HERE and not asks and isfinite(event.since):
        step.put(replace(known, idle_since=max(event.since, known.held_since)))


def _activity_detected(step: Step, event: ActivityDetected) -> None:
    if known := step.state.containers.get(event.container):
        step.stir(known)


def _preemption_changed(step: Step, event: PreemptionChanged) -> None:
    rule = event.rule
    figures = rule.idle, rule.rotate, rule.memory, rule.least, rule.move_share
    if all(each >= 0 for each in figures) and rule.out > 0 and rule.back > 0:
        if rule.move_share and not step.state.preemption.move_share:
            step.state = replace(step.state, saved=0.0, saved_at=step.state.now)
        step.state = replace(step.state, preemption=rule)
        step.timely = True
    else:
        step.refuse(Reason.INVALID, f"This preemption rule makes no sense: {rule}.")


HANDLERS: Handlers = {
    MoveBegun: _move_begun,
    SwappedOut: _swapped_out,
    SwapInRequested: _swap_in_requested,
    CameBack: _came_back,
    NotMoved: _not_moved,
    Movable: _movable,
    StaysOnCard: _stays_on_card,
    Idle: _idle,
    ActivityDetected: _activity_detected,
    PreemptionChanged: _preemption_changed,
}
