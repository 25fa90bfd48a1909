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

from scheduler.core.effects import Effect
from scheduler.core.events import Event
from scheduler.core.handlers import cards, containers, moves, people, queue, sessions
from scheduler.core.moves import defragmentation, preemption
from scheduler.core.reserved import giving
from scheduler.core.state import State
from scheduler.core.step import Step

_HANDLERS = cards.HANDLERS | containers.HANDLERS | moves.HANDLERS | people.HANDLERS | queue.HANDLERS | sessions.HANDLERS


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
