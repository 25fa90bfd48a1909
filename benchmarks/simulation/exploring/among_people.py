"""What the explorer tries and asks where containers are several people's: elections, the cap, moves for shares."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations

from scheduler.core import fair, safety
from scheduler.core.arbiter import handle
from scheduler.core.effects import Effect, Preempt, TakeBack
from scheduler.core.events import CameBack, Event, Returned, StandIn, SwappedOut, Ticked, WaitedBefore
from scheduler.core.moves import preemption
from scheduler.core.people import heads, sharing
from scheduler.core.people.ledger import Head
from scheduler.core.people.ratios import Ratios
from scheduler.core.people.tree import Node
from scheduler.core.state import Container, Mode, Request, Stage, State

Step = tuple[tuple[tuple[Event, ...], tuple[Effect, ...]], ...]


def elections(state: State, events: Sequence[Event] = ()) -> Iterator[None]:
    """Whoever of the people may be elected, in every order of them; `events`: somebody may come by them."""
    people = sorted({*state.people.owners, *(each.owner for each in events if isinstance(each, StandIn))})
    if len(people) < 2:
        yield
        return
    real = heads.chosen_of
    try:
        for order in permutations(people):

            def by_order(
                state: State, gpu: str, calls: Sequence[Request], known: Ratios, order: tuple[str, ...] = order
            ) -> Request:
                return min(calls, key=lambda request: order.index(state.containers[request.container].owner))

            heads.chosen_of = by_order
            yield
    finally:
        heads.chosen_of = real


def places(state: State, container: str) -> tuple[int, ...]:
    """For each GPU: which of all heads the container's is, from 1 on, or 0; below 0 if it is firm."""
    numbers = sorted({head.number for head in state.people.heads.values()})
    found = (state.people.heads.get(gpu) for gpu in state.gpus)
    return tuple(
        (1 + numbers.index(head.number)) * (-1 if head.firm else 1) if head and head.container == container else 0
        for head in found
    )


def with_heads(state: State, places: Sequence[tuple[int, ...]]) -> State:
    """`places`: for each container, in their order, what `places` said."""
    found: dict[str, Head] = {}
    for name, its in zip(state.containers, places, strict=True):
        for gpu, number in zip(state.gpus, its, strict=True):
            due = (r for r in state.waiting if r.container == name and heads.due(state, r) <= state.now)
            if number and (first := next(due, None)):
                found[gpu] = Head(first.session, first.serial, name, abs(number), firm=number < 0)
    firm = {gpu: head._replace(firm=True) for gpu, head in found.items()}  # it is settled: nobody is replaced by it
    state = heads.elect(replace(state, people=state.people._replace(heads=firm, elected=len(state.containers))))
    others = {head.number for head in found.values() if not head.firm}
    known = {
        gpu: head._replace(firm=head.firm and head.number not in others) for gpu, head in state.people.heads.items()
    }
    return replace(state, people=state.people._replace(heads=known))


def wrong(before: State, after: State, step: Step) -> list[str]:
    if len(after.people.owners) < 2:
        return []
    found = list(_capped(after))
    # Nobody waits yet after a restart; and a head that was replaced does not come back with the same number.
    if before.people.heads != after.people.heads and not isinstance(step[0][0][-1], WaitedBefore):
        state = before
        for event in (event for events, _ in step for event in events):
            earlier, (state, _) = state, handle(state, event)
            found += _passed_over(earlier, state)
    for effect in (effect for _, effects in step for effect in effects):
        if isinstance(effect, Preempt) and effect.why is Mode.SHARE:
            found += [*_gives_too_much(after, effect), *_goes_on(after)]
    return found


def _passed_over(before: State, after: State) -> Iterator[str]:
    """A head stays until it is served, or gone, or, once, has more than its share where another has less, at the end of
    the same event: its person may give memory back by the next. Within a person the first one may become another."""
    for gpu, head in before.people.heads.items():
        same = [
            r
            for r in after.waiting
            if (r.session, r.serial, r.container) == (head.session, head.serial, head.container)
        ]
        if not same or safety.put_by(after.containers[head.container]) or heads.due(after, same[0]) > after.now:
            continue
        now = after.people.heads.get(gpu)
        owner = after.containers[head.container].owner
        other = after.containers[now.container].owner if now else owner
        replaced = now and now.firm and not head.firm and sharing.gives_place_to(after, gpu, owner, other)
        if now is None or (other != owner and not replaced):
            yield f"{head} was head of {gpu}, still waits, and {now} is head"


def _capped(state: State) -> Iterator[str]:
    """No holder, and nobody's first container on a card, is held back by the cap; nor is everybody who is due."""
    due = []
    for request in state.waiting:
        container = state.containers[request.container]
        capped = fair.capped_by(state, request, fair.Sure(state, request.gpu))
        mine = [each for each in state.containers.values() if each.owner == container.owner]
        if capped and (
            safety.holds(container) or not any(each.leased.get(g) for each in mine for g in container.quota)
        ):
            yield f"{request} is held back for {capped}"
        if heads.due(state, request) <= state.now and not safety.put_by(container):
            due.append(bool(capped))
    if due and all(due):
        yield "all who are due are held back by the cap"


def _gives_too_much(state: State, effect: Preempt) -> Iterator[str]:
    """Counted anew: the giver's side holds more than its share; and it then lacks less than the waiter's gains, unless
    both are in one group, which then lacks no more. And if it lacks anything, nobody could be spared in its place."""
    giver, waiter = state.containers[effect.container], state.containers[effect.whom]
    tree = state.people.tree
    mine, theirs = tree.parted(giver.owner, waiter.owner)
    lacks = False
    for gpu, goes in giver.leased.items():
        held = Counter[Node]()
        share = defaultdict[Node, float](float)
        for each in state.containers.values():
            held.update(dict.fromkeys(tree.way(each.owner), each.leased.get(gpu, 0)))
        waits = {state.containers[r.container].owner for r in state.waiting if r.gpu == gpu}
        parts = tree.divide(waits | {each.owner for each in state.containers.values() if each.leased.get(gpu)})
        for name, part in parts.items():
            for node in tree.way(name):
                share[node] += part * state.gpus[gpu].capacity
        if held[mine] <= share[mine]:
            yield f"{effect}: {mine} holds no more than its share of {gpu}"
        lacks |= held[mine] - goes < int(share[mine])
        if gpu in waiter.quota and len(waiter.quota) == 1:
            asks = max(r.bytes for r in state.waiting if r.container == waiter.id)
            comes = asks if safety.holds(waiter) else waiter.out.get(gpu, 0) or waiter.quota[gpu]
            group, *inside = tree.way(giver.owner)
            if mine not in inside and max(0, share[mine] - held[mine] + goes) >= min(
                comes, share[theirs] - held[theirs]
            ):
                yield f"{effect}: {mine} lacks more of {gpu} than {theirs} gains"
            if mine in inside and share[group] - held[group] + goes - comes > max(0, share[group] - held[group]):
                yield f"{effect}: {group} lacks more of {gpu}"
    if lacks and (others := _spared(state, giver, waiter)):
        yield f"{effect}: {mine} lacks some of its share, and {others} could be spared"


def _spared(state: State, giver: Container, waiter: Container) -> list[str]:
    """Others by whom the waiter's call would be served, and whose sides keep their shares without them."""
    state = replace(state, containers={**state.containers, giver.id: replace(giver, stage=Stage.HERE)})
    able = [each for each in state.containers.values() if each is not giver and preemption.may_go(state, each)]
    for request in (r for r in state.waiting if r.container == waiter.id):
        for count in range(1, len(able) + 1):
            for going in combinations(able, count):
                gone: sharing.Gone = Counter(
                    {(request.gpu, node): -request.bytes for node in state.people.tree.way(waiter.owner)}
                )
                spared = all(preemption._goes_for(state, each, request, gone, keeps=True) for each in going)
                if spared and preemption._served(state, going, request) == waiter.id:
                    return [each.id for each in going]
    return []


def _goes_on(state: State) -> Iterator[str]:
    """Moves alone come to an end: everything that was begun ends well, nothing else happens, and much time passes."""
    moves, most = 1, 2 * len(state.containers)
    while moves <= most:
        stages = {each.stage: each.id for each in state.containers.values() if each.stage}
        if Stage.LEAVING in stages:
            event: Event = SwappedOut(state.now, stages[Stage.LEAVING])
        elif Stage.COMING in stages:
            event = CameBack(state.now, stages[Stage.COMING])
        else:
            event = Ticked(state.now + 2 * heads.PATIENCE)
        events, effects = [event], list[Effect]()
        while events:
            state, more = handle(state, events.pop())
            effects += more
            events += [Returned(state.now, each.gpu, {}, all=True) for each in more if isinstance(each, TakeBack)]
        moves += sum(isinstance(each, Preempt) for each in effects)
        if isinstance(event, Ticked) and not effects:
            return
    yield f"containers are moved for ever: {state.waiting}"
