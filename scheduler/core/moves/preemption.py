"""Who gives way: whose memory is moved to the host's, so that somebody who waits can be served.

`idle`: who holds memory and has computed nothing for `Preemption.idle` seconds. `share`: these, and who has held for
long, of no higher priority, for one that has waited for long; but only if its side holds more than its share of the
card, the waiter's less, and less of all shares is lacking afterwards (`people/sharing.py`). `rotate`: the same
whatever their shares. Long is `Preemption.rotate` seconds, and at least WORTH times what it takes to move both of them
out and back: so transfers take a small part of the time, and where jobs are no longer than transfers nobody is moved
at all. Guaranteed ones stay, and so does who has opted out, is paused, shares memory so that it would not come back, or
could not be moved a while ago.

It decides nothing about who is served: that is the policy's, and the banker's check's. Holders are chosen
until they make room for somebody: idle ones, then by lowest priority, furthest above their share, longest idle, longest
held; those that are not needed are left out. Then it is tried out: with these out, would anybody be served (where one
that computes goes for a share: would the waiter itself)? If not, they stay. Of those chosen the first is moved;
when it is out all is judged anew. So one moves at a time, and what comes free meanwhile counts.

It is judged when time passes and when a transfer has ended, never by a call: who asks pays nothing for it. The bound is
proved in docs/deciding.md.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import inf

from scheduler.core import changes, moves, policies, reserved, safety
from scheduler.core.effects import Preempt, Served
from scheduler.core.events import MoveBegun
from scheduler.core.people import heads, sharing
from scheduler.core.state import Container, Mode, Request, State
from scheduler.core.step import Step

WORTH = 20

TRIED = 4  # choices for a GPU that are tried out: each trial costs as much as a decision


def preempt(step: Step, for_a_reservation: Callable[[State], Preempt | None]) -> None:
    """Moves the next container out, if there is one: for a reservation, else for a call. One at a time moves."""
    state = step.state
    if not (state.waiting or state.reserves):
        return
    if moves.is_moving(state):
        return
    if preempted := for_a_reservation(state) or _next(state):
        container = step.state.containers[preempted.container]
        step.state = changes.put_container(step.state, moves.moved(container, MoveBegun))
        step.effects.append(preempted)


def _next(state: State) -> Preempt | None:
    """The first to go for the first call that room can be made for."""
    if state.preemption.mode is Mode.OFF or not state.waiting:
        return None
    holders = _holders(state)
    tried: Counter[str] = Counter()
    for request in waiting_in_earnest(state) if holders else ():
        ways = product((True, False), _needs(state, request)) if tried[request.gpu] < TRIED else ()
        for keeps, need in ways:
            if going := _enough(state, need, request, holders, keeps=keeps):
                tried[request.gpu] += 1
                if whom := _served(state, going, request):
                    return Preempt(going[0].id, whom, _why(state, going[0]))
    return None


def _holders(state: State) -> dict[str, list[Container]]:
    """GPU → who may be asked to leave it, the first to go first; only those for whom there is room in host memory."""
    left = moves.host_room(state)
    able = [each for each in state.containers.values() if may_go(state, each) and moves.size(each) <= left]
    holders: dict[str, list[Container]] = {}
    for holder in sorted(able, key=lambda each: rank(state, each)):
        for gpu in holder.leased:
            holders.setdefault(gpu, []).append(holder)
    return holders


def may_go(state: State, container: Container) -> bool:
    """Whether it may be asked to."""
    return bool(container.leased) and may_be_moved(state, container)


def may_be_moved(state: State, container: Container) -> bool:
    """Whether it may be moved for others."""
    stays = container.guaranteed or container.paused or container.killed
    stays = stays or not (container.preemptible and container.movable)
    return not (stays or container.stage) and container.stays_until <= state.now


def _is_idle(state: State, container: Container) -> bool:
    return container.idle_since is not None and state.now - container.idle_since >= state.preemption.idle


def _why(state: State, container: Container) -> Mode:
    return Mode.IDLE if _is_idle(state, container) else state.preemption.mode


def rank(state: State, container: Container) -> tuple[bool, float, int, float, float, int, float, float]:
    """Who is idle first; who could be moved when last asked; lowest priority; furthest above its share; then, of one
    person, lowest priority; idle longest; has held longest."""
    idle = inf if container.idle_since is None else container.idle_since
    group, person = sharing.above(state, container)
    first = not _is_idle(state, container), container.stays_until, _priority(state, container)
    return *first, -group, -person, container.priority, idle, container.held_since


def _priority(state: State, container: Container) -> int:
    """What counts against other people's."""
    return container.priority if heads.counts(state, container) else 0


def _goes_for(state: State, holder: Container, request: Request, gone: sharing.Gone, *, keeps: bool) -> bool:
    """It is idle, or has held, as the call has waited, for so long that the exchange is worth it."""
    if _is_idle(state, holder):
        return True
    waits, rule = state.containers[request.container], state.preemption
    if holder is waits or not _has_waited(state, request):
        return False
    if holder.owner != waits.owner:
        stays = _priority(state, holder) > _priority(state, waits)
    else:
        stays = rule.mode is Mode.SHARE or holder.priority > waits.priority
    if stays:
        return False
    cost = rule.seconds(moves.size(holder)) + rule.seconds(sum(waits.quota.values()))
    if state.now - max(holder.held_since, request.since) < max(rule.rotate, WORTH * cost):
        return False
    return rule.mode is Mode.ROTATE or sharing.gives_to(state, holder, waits, request.gpu, gone, keeps=keeps)


def _has_waited(state: State, request: Request) -> bool:
    rule = state.preemption
    return rule.mode in (Mode.ROTATE, Mode.SHARE) and state.now - request.since >= rule.rotate


def waiting_in_earnest(state: State) -> list[Request]:
    """Those that wait in earnest: who has waited for long; then holders, which every policy tries; the first due, a
    head as if it had been due before all others on its cards."""
    dues = {id(request): heads.due(state, request) for request in state.waiting}
    firsts = _firsts(state, dues)

    def rank(request: Request) -> tuple[bool, bool, bool, float, bool]:
        long, holds = _has_waited(state, request), safety.holds(state.containers[request.container])
        is_head = id(request) in firsts
        since = firsts[id(request)] if is_head else dues[id(request)]
        return not long, not (long or holds), not request.placed, since, not is_head

    waiting = (r for r in state.waiting if r.suspended and policies.may_be_served(state.containers[r.container], r))
    return sorted(waiting, key=rank)


def _firsts(state: State, dues: Mapping[int, float]) -> dict[int, float]:
    """Each head → when the first of those on the cards that it is head of became due."""
    found: dict[int, float] = {}
    for gpu in state.people.heads:
        if (head := heads.head(state, gpu)) is not None:
            near = (r for r in state.waiting if gpu in state.containers[r.container].quota)
            its = [dues[id(r)] for r in near if not safety.put_by(state.containers[r.container])]
            found[id(head)] = min(found.get(id(head), inf), *its)
    return found


def _needs(state: State, request: Request) -> Iterator[Mapping[str, int]]:
    """What has to be free, by GPU: what is asked for; if that is not safe, all that its container may still want."""
    container = state.containers[request.container]
    asked = {request.gpu: request.bytes}
    whole = {gpu: quota - container.leased.get(gpu, 0) for gpu, quota in container.quota.items()}
    yield asked
    if whole != asked:
        yield whole


def _enough(
    state: State, need: Mapping[str, int], request: Request, holders: Mapping[str, Sequence[Container]], *, keeps: bool
) -> list[Container]:
    """Those that make room for it, none of whom could stay; empty if all together would not, or none need go.
    `keeps`: only such as leave their sides with their shares."""
    going: dict[str, Container] = {}
    waits = state.containers[request.container]
    comes = request.bytes if safety.holds(waits) else waits.out.get(request.gpu, 0) or need[request.gpu]
    gone: sharing.Gone = Counter({(request.gpu, node): -comes for node in state.people.tree.way(waits.owner)})
    lacking = {gpu: amount - reserved.free(state, gpu, waits.owner) for gpu, amount in need.items()}
    for gpu in need:
        for holder in holders.get(gpu, ()):
            if lacking[gpu] <= 0:
                break
            if holder.id not in going and _goes_for(state, holder, request, gone, keeps=keeps):
                going[holder.id] = holder
                lacking = _with(lacking, holder, -1)
        if lacking[gpu] > 0:
            return []
    for holder in sorted(going.values(), key=lambda each: rank(state, each), reverse=True):
        if all(amount <= 0 for amount in _with(lacking, holder, 1).values()):
            del going[holder.id]
            lacking = _with(lacking, holder, 1)
    chosen = sorted(going.values(), key=lambda each: rank(state, each))
    return chosen if sum(map(moves.size, chosen)) <= moves.host_room(state) else []


def _with(lacking: Mapping[str, int], holder: Container, sign: int) -> dict[str, int]:
    return {gpu: amount + sign * holder.leased.get(gpu, 0) for gpu, amount in lacking.items()}


def _served(state: State, going: Sequence[Container], request: Request) -> str | None:
    """Who would be granted something with these out, or None."""
    step = Step(state)
    for holder in going:
        step.state = changes.put_out(step.state, holder.id)
        step.touched.update(holder.quota)
    step.finish()
    served = [effect.container for effect in step.effects if isinstance(effect, Served)]
    if state.preemption.mode is Mode.SHARE and not all(_is_idle(state, holder) for holder in going):
        return request.container if request.container in served else None  # for its side they go, and for no other
    return request.container if request.container in served else next(iter(served), None)
