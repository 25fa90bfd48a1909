"""The one place where a decision is made: `handle(state, event)` gives the next state and what is to be done.

How it works, in the order of a call's life:

1. The shell takes back what is idle of the container's own headroom if the quota has no room for a call beside it, and
   what it has no room for even then is rejected at once: nobody else is asked. `Needed` puts any other call into the
   queue, and the GPU's queue is *served*: in the order of the policy, each call is
   granted if its container's quota has room for it, the bytes are free, and the step is harmless (`safety.py`). A call
   that comes alone and fits is granted in the same breath. What is free counts leases, used or not.
2. A call that is not granted at once may lack only what others hold as headroom and do not use. The core cannot see
   headroom, so it raises the GPU's pressure flag and asks for all of it (`TakeBack`); likewise for the GPUs that are
   linked to this one, because what is idle there can make a grant here unsafe. The shell answers at once with
   `Returned(all=True)`, the queue is served again, and only then is the call rejected (over quota, or `fail_fast`)
   or suspended.
3. As long as anybody waits on a GPU its pressure flag is up, frees are reported by `Returned`, and no grant carries
   anything `extra`. Whatever returns memory, or makes more steps harmless, serves the queue again.
   After a restart nobody is served before all who waited have asked again (`expected.py`).
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

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf, isfinite
from typing import Any

from scheduler.core import admission, changes, expected, moves, policies, preemption, reserved, safety
from scheduler.core.cards import defragmentation
from scheduler.core.events import (
    ActivityDetected,
    Admitted,
    CameBack,
    ContainerAdded,
    ContainerEnded,
    ContainerKilled,
    ContainerPaused,
    ContainerResumed,
    Effect,
    Event,
    Forgiven,
    GpuDrained,
    GpuSeen,
    Idle,
    LedgerRestored,
    Movable,
    MoveBegun,
    Needed,
    NotMoved,
    OverheadMeasured,
    PeopleChanged,
    PolicyChanged,
    PreemptionChanged,
    Pressure,
    PriorityChanged,
    QuotaChanged,
    Reason,
    Rejected,
    Reordered,
    ReservesChanged,
    Returned,
    SessionEnded,
    SessionOpened,
    StaysOnCard,
    SwapInRequested,
    SwappedOut,
    Ticked,
    UsageElsewhere,
    WaitedBefore,
    WaitOver,
)
from scheduler.core.people import ledger, tree
from scheduler.core.people.ledger import Account, Elsewhere
from scheduler.core.reserved import giving
from scheduler.core.state import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    Container,
    Gpu,
    Request,
    Reserve,
    Session,
    Stage,
    State,
)
from scheduler.core.step import Step


def handle(state: State, *events: Event) -> tuple[State, tuple[Effect, ...]]:
    """Decides. Raises nothing, whatever the events. Effects are to be carried out in order, without delay.

    Several events that are known at the same moment are best handed in together: all of them are taken in before
    anything is granted, so that two holes that open at once are seen as one.
    """
    step = Step(state)
    for event in events:
        step.advance(event.now)
        _HANDLERS[type(event)](step, event)
    step.finish()
    if step.timely and not defragmentation.relocate(step):
        preemption.preempt(step, giving.next_to_go)
    return step.state, tuple(step.effects)


# ---- GPUs and the queue -----------------------------------------------------------------------------------------


def _gpu_seen(step: Step, event: GpuSeen) -> None:
    capacity = max(0, event.capacity)
    known = step.state.gpus.get(event.gpu) or Gpu(event.gpu, 0)
    seen = replace(known, capacity=capacity, most=max(capacity, event.most or 0))
    step.state = replace(step.state, gpus={**step.state.gpus, event.gpu: seen})
    step.touched.add(event.gpu)
    step.disturbed = True


def _gpu_drained(step: Step, event: GpuDrained) -> None:
    if event.gpu in step.state.gpus:
        gpu = replace(step.state.gpus[event.gpu], drained=event.drained)
        step.state = replace(step.state, gpus={**step.state.gpus, event.gpu: gpu})


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


def _ticked(step: Step, event: Ticked) -> None:
    step.touched.update(request.gpu for request in step.state.waiting)
    step.timely = True
    _reserve(step, step.state.reserves)


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


# ---- people -----------------------------------------------------------------------------------------------------


def _people_changed(step: Step, event: PeopleChanged) -> None:
    if wrong := tree.mistake(event.tree):
        step.refuse(Reason.INVALID, wrong)
        return
    step.state = replace(step.state, people=ledger.divided_by(step.state.people, event.tree, step.state.now))
    step.touched.update(step.state.gpus)


def _ledger_restored(step: Step, event: LedgerRestored) -> None:
    for gpu, accounts in event.accounts.items():
        if gpu in step.state.gpus:
            now = {name: ledger.decayed(each, event.age) for name, each in accounts.items()}
            step.state = replace(step.state, people=ledger.with_accounts(step.state.people, gpu, now, step.state.now))


def _usage_elsewhere(step: Step, event: UsageElsewhere) -> None:
    sound = {name: Account(*each) for name, each in event.accounts.items() if ledger.is_sound(each)}
    elsewhere = Elsewhere(step.state.now, sound, max(0, event.capacity))
    step.state = replace(step.state, people=step.state.people._replace(elsewhere=elsewhere))


def _forgiven(step: Step, event: Forgiven) -> None:
    people = ledger.without_accounts(step.state.people, event.person, step.state.now)
    step.state = replace(step.state, people=people)


# ---- containers -------------------------------------------------------------------------------------------------


def _container_added(step: Step, event: ContainerAdded) -> None:
    wanted = Container(
        id=event.container,
        quota=dict(event.quota),
        owner=event.owner,
        arrived=step.state.now,
        priority=event.priority,
        guaranteed=event.guaranteed,
        fail_fast=event.fail_fast,
        max_wait=event.max_wait,
        paused=event.paused,
        preemptible=event.preemptible,
        across=event.across,
    )
    if known := step.state.containers.get(wanted.id):
        if known.quota == wanted.quota and known.owner == wanted.owner:
            step.effects.append(Admitted(known.id))
        else:
            step.refuse(Reason.INVALID, f"Container {known.id} is already here, with other settings.", known.id)
    elif any(asking.container.id == wanted.id for asking in step.state.asking):
        return  # repeated while the first is being decided
    elif refused := admission.impossible(step.state, wanted, running=event.running):
        step.effects.append(refused)
    elif event.running:
        step.admit(wanted)
        step.disturbed = True  # it is there whether or not that is safe
    else:
        step.ask(wanted)


def _quota_changed(step: Step, event: QuotaChanged) -> None:
    known = _known(step, event.container, "changed")
    if known is None:
        return
    if event.quota.keys() != known.quota.keys():
        step.refuse(Reason.INVALID, "A change of quota must name the GPUs that the container has.", known.id)
        return
    wanted = replace(known, quota=dict(event.quota))
    if refused := admission.impossible(step.state, wanted):
        step.effects.append(refused)
    else:
        step.ask(wanted)


def _priority_changed(step: Step, event: PriorityChanged) -> None:
    known = _known(step, event.container, "given a priority")
    if known is None:
        return
    if not LOWEST_PRIORITY <= event.priority <= HIGHEST_PRIORITY:
        step.effects.append(admission.bad_priority(known.id, event.priority))
        return
    _put(step, replace(known, priority=event.priority, across=event.across))
    step.state = replace(step.state, people=step.state.people._replace(look=-inf))  # its calls may be due now


def _container_paused(step: Step, event: ContainerPaused) -> None:
    known = step.state.containers.get(event.container)
    if known and not known.killed:  # a kill ends a paused container too
        _put(step, replace(known, paused=True))
        step.disturbed = True


def _container_resumed(step: Step, event: ContainerResumed) -> None:
    known = step.state.containers.get(event.container)
    if known and known.paused:
        _put(step, replace(known, paused=False))
        step.swap_in(known.id, step.state.now)
        step.judge_again(known.id)


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
        _put(step, replace(moves.moved(known, CameBack), held_since=step.state.now))
        step.judge_again(known.id)
        step.timely = True


def _not_moved(step: Step, event: NotMoved) -> None:
    known = step.state.containers.get(event.container)
    if known and event.seconds >= 0:
        _put(step, replace(moves.moved(known, NotMoved), stays_until=step.state.now + event.seconds))
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
        _put(step, replace(known, idle_since=max(event.since, known.held_since)))


def _activity_detected(step: Step, event: ActivityDetected) -> None:
    if known := step.state.containers.get(event.container):
        step.stir(known)


def _container_killed(step: Step, event: ContainerKilled) -> None:
    step.drop_asking(event.container, "The container is being ended.")
    if known := step.state.containers.get(event.container):
        _put(step, replace(known, killed=True, paused=False, stage=Stage.OUT if known.out else Stage.HERE))
        _reject_all(step, [r for r in step.state.waiting if r.container == known.id])


def _container_ended(step: Step, event: ContainerEnded) -> None:
    step.drop_asking(event.container, "The container has ended.")
    if known := step.state.containers.get(event.container):
        _reject_all(step, [r for r in step.state.waiting if r.container == known.id])
        step.touched.update(safety.linked(step.state, known.quota))
        step.state = changes.drop_container(step.state, known)


def _known(step: Step, container: str, done: str) -> Container | None:
    known = step.state.containers.get(container)
    if known is None:
        step.refuse(Reason.UNKNOWN, f"Container {container} cannot be {done}: it has ended or never was.", container)
    return known


def _put(step: Step, container: Container) -> None:
    step.state = changes.put_container(step.state, container)
    step.touched.update(container.quota)


def _reject_all(step: Step, requests: list[Request]) -> None:
    for request in requests:
        step.reject(request, Reason.KILLED)


# ---- sessions ---------------------------------------------------------------------------------------------------


def _session_opened(step: Step, event: SessionOpened) -> None:
    container = _known(step, event.container, "joined")
    if container is None:
        return
    if known := step.state.sessions.get(event.session):
        if known.container != container.id:
            step.refuse(Reason.INVALID, f"Session {known.id} belongs to container {known.container}.", container.id)
        return
    leased = {
        gpu: min(amount, container.quota[gpu] - container.leased.get(gpu, 0))
        for gpu, amount in event.leased.items()
        if gpu in container.quota
    }
    session = Session(event.session, container.id, {gpu: amount for gpu, amount in leased.items() if amount > 0})
    step.state = changes.put_session(step.state, session)
    step.disturbed = step.disturbed or bool(session.leased)
    # A page made after the flags went up has them down.
    step.effects.extend(Pressure(gpu, True) for gpu in container.quota if gpu in step.state.pressed)


def _session_ended(step: Step, event: SessionEnded) -> None:
    if known := step.state.sessions.get(event.session):
        _reject_all(step, [r for r in step.state.waiting if r.session == known.id])
        step.touched.update(step.state.containers[known.container].quota)
        step.came.add(known.container)
        step.state = changes.drop_session(step.state, known)
        rest = step.state.containers[known.container]
        if not (rest.out or rest.paused):
            step.swap_in(rest.id, step.state.now)  # nothing of it is out any more


def _needed(step: Step, event: Needed) -> None:
    session = step.state.sessions.get(event.session)
    container = step.state.containers[session.container] if session else None
    if any((r.session, r.serial) == (event.session, event.serial) for r in step.state.waiting):
        return  # repeated: it is waiting already
    if container is not None:
        step.expect_no_more(container.id)
    reason: Reason | None = None
    if container is None or event.gpu not in container.quota:
        reason = Reason.UNKNOWN
    elif event.bytes <= 0:
        reason = Reason.INVALID
    elif container.killed:
        reason = Reason.KILLED
    elif event.bytes > container.quota[event.gpu]:
        reason = Reason.OVER_QUOTA
    name = container.id if container else ""
    if reason is None:
        assert container is not None
        step.stir(container)
        if event.collected and not changes.has_room(container, event.gpu, event.bytes):
            reason = Reason.OVER_QUOTA
    if reason is not None:
        step.effects.append(
            Rejected(event.session, event.serial, name, event.gpu, event.bytes, reason, 0.0, was_suspended=False)
        )
        return
    now = step.state.now
    since = now if event.since is None or not isfinite(event.since) else min(event.since, now)
    step.wait(Request(event.session, event.serial, name, event.gpu, event.bytes, since))


def _waited_before(step: Step, event: WaitedBefore) -> None:
    step.expect(expected.told(step.state, event))


def _wait_over(step: Step, event: WaitOver) -> None:
    step.expect_no_more(event.container)


def _returned(step: Step, event: Returned) -> None:
    if event.gpu not in step.state.gpus:
        return
    for session, amount in event.taken.items():
        if session in step.state.sessions and amount > 0:
            step.state = changes.lend(step.state, session, event.gpu, -amount)
            step.touched.add(event.gpu)
    if event.all:
        step.returned(event.gpu)


def _overhead_measured(step: Step, event: OverheadMeasured) -> None:
    session = step.state.sessions.get(event.session)
    if session and event.gpu in step.state.containers[session.container].quota:
        step.state = changes.lend(step.state, session.id, event.gpu, event.change)
        step.disturbed = True
        step.touched.add(event.gpu)


_HANDLERS: dict[type, Callable[[Step, Any], None]] = {
    GpuSeen: _gpu_seen,
    GpuDrained: _gpu_drained,
    ContainerAdded: _container_added,
    QuotaChanged: _quota_changed,
    PriorityChanged: _priority_changed,
    ContainerPaused: _container_paused,
    ContainerResumed: _container_resumed,
    SwappedOut: _swapped_out,
    SwapInRequested: _swap_in_requested,
    MoveBegun: _move_begun,
    CameBack: _came_back,
    NotMoved: _not_moved,
    Movable: _movable,
    StaysOnCard: _stays_on_card,
    Idle: _idle,
    ActivityDetected: _activity_detected,
    ContainerKilled: _container_killed,
    ContainerEnded: _container_ended,
    SessionOpened: _session_opened,
    SessionEnded: _session_ended,
    Needed: _needed,
    WaitedBefore: _waited_before,
    WaitOver: _wait_over,
    Returned: _returned,
    OverheadMeasured: _overhead_measured,
    PeopleChanged: _people_changed,
    LedgerRestored: _ledger_restored,
    UsageElsewhere: _usage_elsewhere,
    Forgiven: _forgiven,
    ReservesChanged: _reserves_changed,
    PolicyChanged: _policy_changed,
    PreemptionChanged: _preemption_changed,
    Reordered: _reordered,
    Ticked: _ticked,
}
