"""Processes connect, ask for memory and go."""

from math import isfinite

from scheduler.core import changes, expected
from scheduler.core.effects import Pressure, Reason, Rejected
from scheduler.core.events import Needed, SessionEnded, SessionOpened, WaitedBefore, WaitOver
from scheduler.core.state import Request, Session
from scheduler.core.step import Handlers, Step


def _session_opened(step: Step, event: SessionOpened) -> None:
    container = step.known(event.container, "joined")
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
        step.reject_killed(r for r in step.state.waiting if r.session == known.id)
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
    step.expect(expected.begun(step.state, event))


def _wait_over(step: Step, event: WaitOver) -> None:
    step.expect_no_more(event.container)


HANDLERS: Handlers = {
    SessionOpened: _session_opened,
    SessionEnded: _session_ended,
    Needed: _needed,
    WaitedBefore: _waited_before,
    WaitOver: _wait_over,
}
