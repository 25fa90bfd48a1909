"""The one place where a decision is made: `handle(state, event)` gives the next state and what is to be done.

How it works, in the order of a call's life:

1. `Needed` puts the call into the queue, and the GPU's queue is *served*: in the order of the policy, each call is
   granted if its container's quota has room for it, the bytes are free, and the step is harmless (`safety.py`). A call
   that comes alone and fits is granted in the same breath. What is free counts leases, used or not.
2. A call that is not granted at once may lack only what others hold as headroom and do not use. The core cannot see
   headroom, so it raises the GPU's pressure flag and asks for all of it (`TakeBack`); likewise for the GPUs that are
   linked to this one, because what is idle there can make a grant here unsafe. The shell answers at once with
   `Returned(all=True)`, the queue is served again, and only then is the call rejected (over quota, or `fail_fast`)
   or suspended.
3. As long as anybody waits on a GPU its pressure flag is up, frees are reported by `Returned`, and no grant carries
   anything `extra`. Whatever returns memory, or makes more steps harmless, serves the queue again.
4. A wait ends by a grant, by `max_wait`, by a kill, by the end of the session, or because the quota no longer has room
   for it. Every call that was ever `Needed` is answered exactly once, by `Granted` or `Rejected`.

A launch or a change of quota that idle headroom may be in the way of is decided the same way: it is kept in `asking`
until the headroom of its GPUs is back. Nothing is promised twice: what a guaranteed container has reserved counts as
held by it from its admission.

Events may be late, repeated, out of order or about somebody unknown; the clock may go backwards. Every event has a
defined answer and none raises: what is unknown is refused or, where it asks for nothing, ignored; what repeats changes
nothing; time never goes back (`State.now` is the latest time seen).

Cost: an event about one GPU looks at the containers of that GPU and of those linked to it by containers with several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any

from . import admission, changes, policies, safety
from .events import (
    Admitted,
    ContainerAdded,
    ContainerEnded,
    ContainerKilled,
    ContainerPaused,
    ContainerResumed,
    Effect,
    Event,
    GpuSeen,
    Needed,
    OverheadMeasured,
    PolicyChanged,
    Pressure,
    PriorityChanged,
    QuotaChanged,
    Reason,
    Rejected,
    Reordered,
    Returned,
    SessionEnded,
    SessionOpened,
    Ticked,
)
from .state import HIGHEST_PRIORITY, LOWEST_PRIORITY, Container, Gpu, Request, Session, State
from .turn import Turn


def handle(state: State, *events: Event) -> tuple[State, tuple[Effect, ...]]:
    """Decides. Raises nothing, whatever the events. Effects are to be carried out in order, without delay.

    Several events that are known at the same moment are best handed in together: all of them are taken in before
    anything is granted, so that two holes that open at once are seen as one.
    """
    turn = Turn(state)
    for event in events:
        turn.advance(event.now)
        _HANDLERS[type(event)](turn, event)
    turn.finish()
    return turn.state, tuple(turn.effects)


# ---- GPUs and the queue -----------------------------------------------------------------------------------------


def _gpu_seen(turn: Turn, event: GpuSeen) -> None:
    capacity = max(0, event.capacity)
    known = turn.state.gpus.get(event.gpu) or Gpu(event.gpu, 0)
    seen = replace(known, capacity=capacity, most=max(capacity, event.most or 0))
    turn.state = replace(turn.state, gpus={**turn.state.gpus, event.gpu: seen})
    turn.touched.add(event.gpu)
    turn.disturbed = True


def _policy_changed(turn: Turn, event: PolicyChanged) -> None:
    if event.policy not in policies.POLICIES:
        turn.refuse(Reason.UNKNOWN, f"There is no policy {event.policy!r}; there are {', '.join(policies.POLICIES)}.")
        return
    turn.state = replace(turn.state, policy=event.policy)
    turn.touched.update(turn.state.gpus)


def _reordered(turn: Turn, event: Reordered) -> None:
    """Those named are placed, in this order; an earlier order by hand is forgotten."""
    rank = {name: place for place, name in reversed(list(enumerate(event.containers)))}
    placed = sorted((r for r in turn.state.waiting if r.container in rank), key=lambda r: rank[r.container])
    others = sorted((r for r in turn.state.waiting if r.container not in rank), key=lambda r: not r.placed)
    queue = [replace(r, placed=True) for r in placed] + others
    turn.state = replace(turn.state, waiting=tuple(queue))
    turn.touched.update(request.gpu for request in queue)


def _ticked(turn: Turn, event: Ticked) -> None:
    turn.touched.update(request.gpu for request in turn.state.waiting)


# ---- containers -------------------------------------------------------------------------------------------------


def _container_added(turn: Turn, event: ContainerAdded) -> None:
    wanted = Container(
        id=event.container,
        quota=dict(event.quota),
        owner=event.owner,
        arrived=turn.state.now,
        priority=event.priority,
        guaranteed=event.guaranteed,
        fail_fast=event.fail_fast,
        max_wait=event.max_wait,
        paused=event.paused,
    )
    if known := turn.state.containers.get(wanted.id):
        if known.quota == wanted.quota and known.owner == wanted.owner:
            turn.effects.append(Admitted(known.id))
        else:
            turn.refuse(Reason.INVALID, f"Container {known.id} is already here, with other settings.", known.id)
    elif any(asking.container.id == wanted.id for asking in turn.state.asking):
        return  # repeated while the first is being decided
    elif refused := admission.impossible(turn.state, wanted, running=event.running):
        turn.effects.append(refused)
    elif event.running:
        turn.admit(wanted)
        turn.disturbed = True  # it is there whether or not that is safe
    else:
        turn.ask(wanted)


def _quota_changed(turn: Turn, event: QuotaChanged) -> None:
    known = _known(turn, event.container, "changed")
    if known is None:
        return
    if event.quota.keys() != known.quota.keys():
        turn.refuse(Reason.INVALID, "A change of quota must name the GPUs that the container has.", known.id)
        return
    wanted = replace(known, quota=dict(event.quota))
    if refused := admission.impossible(turn.state, wanted):
        turn.effects.append(refused)
    else:
        turn.ask(wanted)


def _priority_changed(turn: Turn, event: PriorityChanged) -> None:
    known = _known(turn, event.container, "given a priority")
    if known is None:
        return
    if not LOWEST_PRIORITY <= event.priority <= HIGHEST_PRIORITY:
        turn.effects.append(admission.bad_priority(known.id, event.priority))
        return
    _put(turn, replace(known, priority=event.priority))


def _container_paused(turn: Turn, event: ContainerPaused) -> None:
    known = turn.state.containers.get(event.container)
    if known and not known.killed:  # a kill ends a paused container too
        _put(turn, replace(known, paused=True))
        turn.disturbed = True


def _container_resumed(turn: Turn, event: ContainerResumed) -> None:
    if known := turn.state.containers.get(event.container):
        _put(turn, replace(known, paused=False))


def _container_killed(turn: Turn, event: ContainerKilled) -> None:
    turn.drop_asking(event.container, "The container is being ended.")
    if known := turn.state.containers.get(event.container):
        _put(turn, replace(known, killed=True, paused=False))
        _reject_all(turn, [r for r in turn.state.waiting if r.container == known.id])


def _container_ended(turn: Turn, event: ContainerEnded) -> None:
    turn.drop_asking(event.container, "The container has ended.")
    if known := turn.state.containers.get(event.container):
        _reject_all(turn, [r for r in turn.state.waiting if r.container == known.id])
        turn.touched.update(safety.linked(turn.state, known.quota))
        turn.state = changes.drop_container(turn.state, known)


def _known(turn: Turn, container: str, done: str) -> Container | None:
    known = turn.state.containers.get(container)
    if known is None:
        turn.refuse(Reason.UNKNOWN, f"Container {container} cannot be {done}: it has ended or never was.", container)
    return known


def _put(turn: Turn, container: Container) -> None:
    turn.state = changes.put_container(turn.state, container)
    turn.touched.update(container.quota)


def _reject_all(turn: Turn, requests: list[Request]) -> None:
    for request in requests:
        turn.reject(request, Reason.KILLED)


# ---- sessions ---------------------------------------------------------------------------------------------------


def _session_opened(turn: Turn, event: SessionOpened) -> None:
    container = _known(turn, event.container, "joined")
    if container is None:
        return
    if known := turn.state.sessions.get(event.session):
        if known.container != container.id:
            turn.refuse(Reason.INVALID, f"Session {known.id} belongs to container {known.container}.", container.id)
        return
    leased = {
        gpu: min(amount, container.quota[gpu] - container.leased.get(gpu, 0))
        for gpu, amount in event.leased.items()
        if gpu in container.quota
    }
    session = Session(event.session, container.id, {gpu: amount for gpu, amount in leased.items() if amount > 0})
    turn.state = changes.put_session(turn.state, session)
    turn.disturbed = turn.disturbed or bool(session.leased)
    # A page made after the flags went up has them down.
    turn.effects.extend(Pressure(gpu, True) for gpu in container.quota if gpu in turn.state.pressed)


def _session_ended(turn: Turn, event: SessionEnded) -> None:
    if known := turn.state.sessions.get(event.session):
        _reject_all(turn, [r for r in turn.state.waiting if r.session == known.id])
        turn.touched.update(turn.state.containers[known.container].quota)
        turn.state = changes.drop_session(turn.state, known)


def _needed(turn: Turn, event: Needed) -> None:
    session = turn.state.sessions.get(event.session)
    container = turn.state.containers[session.container] if session else None
    if any((r.session, r.serial) == (event.session, event.serial) for r in turn.state.waiting):
        return  # repeated: it is waiting already
    reason = None
    if container is None or event.gpu not in container.quota:
        reason = Reason.UNKNOWN
    elif event.bytes <= 0:
        reason = Reason.INVALID
    elif container.killed:
        reason = Reason.KILLED
    elif event.bytes > container.quota[event.gpu]:
        reason = Reason.OVER_QUOTA
    name = container.id if container else ""
    if reason is not None:
        turn.effects.append(
            Rejected(event.session, event.serial, name, event.gpu, event.bytes, reason, 0.0, was_suspended=False)
        )
        return
    now = turn.state.now
    since = now if event.since is None or not isfinite(event.since) else min(event.since, now)
    turn.wait(Request(event.session, event.serial, name, event.gpu, event.bytes, since))


def _returned(turn: Turn, event: Returned) -> None:
    if event.gpu not in turn.state.gpus:
        return
    for session, amount in event.taken.items():
        if session in turn.state.sessions and amount > 0:
            turn.state = changes.lend(turn.state, session, event.gpu, -amount)
            turn.touched.add(event.gpu)
    if event.all:
        turn.returned(event.gpu)


def _overhead_measured(turn: Turn, event: OverheadMeasured) -> None:
    session = turn.state.sessions.get(event.session)
    if session and event.gpu in turn.state.containers[session.container].quota:
        turn.state = changes.lend(turn.state, session.id, event.gpu, event.change)
        turn.disturbed = True
        turn.touched.add(event.gpu)


_HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    GpuSeen: _gpu_seen,
    ContainerAdded: _container_added,
    QuotaChanged: _quota_changed,
    PriorityChanged: _priority_changed,
    ContainerPaused: _container_paused,
    ContainerResumed: _container_resumed,
    ContainerKilled: _container_killed,
    ContainerEnded: _container_ended,
    SessionOpened: _session_opened,
    SessionEnded: _session_ended,
    Needed: _needed,
    Returned: _returned,
    OverheadMeasured: _overhead_measured,
    PolicyChanged: _policy_changed,
    Reordered: _reordered,
    Ticked: _ticked,
}
