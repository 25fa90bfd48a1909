"""The queue's order, the reservations in front of it, and time."""

from dataclasses import replace

from scheduler.core import policies, reserved
from scheduler.core.effects import Reason
from scheduler.core.events import PolicyChanged, Reordered, ReservesChanged, Ticked
from scheduler.core.reserved import giving
from scheduler.core.state import Reserve
from scheduler.core.step import Handlers, Step


def _policy_changed(step: Step, event: PolicyChanged) -> None:
    if event.policy not in policies.POLICIES:
        step.refuse(Reason.UNKNOWN, f"There is no policy {event.policy!r}; there are {', '.join(policies.POLICIES)}.")
        return
    step.state = replace(step.state, policy=event.policy)
    step.touched.update(step.state.gpus)


def _reordered(step: Step, event: Reordered) -> None:
    """Those named are placed, in this order; an earlier order by hand is forgotten."""
    rank = {name: place for place, name in reversed(list(enumerate(event.containers)))}
    placed = sorted((r for r in step.state.waiting if r.container in rank), key=lambda r: rank[r.container])
    others = sorted((r for r in step.state.waiting if r.container not in rank), key=lambda r: not r.placed)
    queue = [replace(r, placed=True) for r in placed] + others
    step.state = replace(step.state, waiting=tuple(queue))
    step.touched.update(request.gpu for request in queue)


def _reserves_changed(step: Step, event: ReservesChanged) -> None:
    if wrong := next((each for each in event.reserves if not reserved.sound(each)), None):
        step.refuse(Reason.INVALID, f"This reservation makes no sense: {wrong}.")
        return
    _reserve(step, reserved.heard(step.state, event.reserves))
    step.timely = True


def _reserve(step: Step, reserves: tuple[Reserve, ...]) -> None:
    """As of now. What was kept and is so no more is tried for who waits."""
    if not (reserves or step.state.reserves):
        return
    before = {each.gpu for each in step.state.reserves}
    step.state = replace(step.state, reserves=reserves)
    step.state = replace(step.state, reserves=reserved.passed(step.state, giving.lead(step.state)))
    step.touched.update(before | {each.gpu for each in step.state.reserves})


def _ticked(step: Step, event: Ticked) -> None:
    step.touched.update(request.gpu for request in step.state.waiting)
    step.timely = True
    _reserve(step, step.state.reserves)


HANDLERS: Handlers = {
    PolicyChanged: _policy_changed,
    Reordered: _reordered,
    ReservesChanged: _reserves_changed,
    Ticked: _ticked,
}
