"""Who goes to another card of the host, so that somebody who waits fits: what is free lies in pieces on several cards.

For a call that has waited for a while, the cheapest set of moves is looked for that makes room for all that its
container may still want: others leave its card, for room that is there or that further moves make, or it goes to
another card itself. What goes finds its whole quota free where it comes to. The first of the set moves, and when that
has come to its end all is judged anew. It is tried out before: with it there, would it come back at once, and, where it
is the last of the set, would the call be granted? If not, nobody moves.

Guaranteed containers stay, those that have opted out, are paused, cannot be moved, have several cards, or were moved a
while ago; nobody comes to a card that is out of service, or for which a call waits that is not behind this one; who
comes stands there in this call's place. The bound: moves are expected to take no more than `Preemption.move_share` of
the cards' time, counted from when that was set (what is saved up is BURST of that at most), nor more than half of what
the call has waited. Like preemption it is judged when time passes and when a transfer has ended, and for each of TRIED
calls for a card the search looks at EFFORT combinations at most.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.core import changes, moves, reserved
from scheduler.core.effects import Relocate, Restore, Served
from scheduler.core.events import STAYS, CameBack, MoveBegun
from scheduler.core.moves import preemption
from scheduler.core.state import Container, Request, State
from scheduler.core.step import Step

MOST = 3  # moves for one call
EFFORT = 256
TRIED = 2  # calls for a card that are looked at
BURST = 3600.0  # seconds
WAITS = 30.0  # seconds that a call has waited at least
WORTH = 2.0  # times what the moves take


@dataclass(frozen=True, slots=True)
class Move:
    container: Container
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds`: what the moves are expected to take. `free`: bytes by card, if they were done."""

    seconds: float
    moves: tuple[Move, ...]
    free: Mapping[str, int]


def relocate(step: Step) -> bool:
    """Tells the next one to go to another card, if there is one; whether there is."""
    state, before = step.state, Counter[str]()
    for request in _waiting(state):
        before[request.gpu] += 1
        if before[request.gpu] > TRIED:
            continue
        if (plan := _Search(state, request, before.keys()).plan()) and _is_worth(state, request, plan):
            first = plan.moves[0]
            if _helps(state, first, request, last=len(plan.moves) == 1):
                seconds = state.preemption.seconds(moves.size(first.container))
                begun = replace(moves.moved(first.container, MoveBegun), relocated=state.now, place=request.since)
                saved = saved_up(state) - seconds / _a_second(state)
                step.state = replace(changes.put_container(state, begun), saved=saved, saved_at=state.now)
                step.effects.append(Relocate(begun.id, first.old, first.new, request.container))
                return True
    return False


def saved_up(state: State) -> float:
    """Seconds of which nothing was used for moves."""
    return min(BURST, state.saved + state.now - state.saved_at)


def _a_second(state: State) -> float:
    """What of all cards' time moves may take in a second."""
    return state.preemption.move_share * len(state.gpus)


def _waiting(state: State) -> Iterator[Request]:
    if state.preemption.move_share <= 0 or len(state.gpus) < 2 or not state.waiting:
        return
    if moves.is_moving(state):
        return
    for request in preemption.waiting_in_earnest(state):
        if not request.back and state.now - request.since >= WAITS:
            yield request


def _is_worth(state: State, request: Request, plan: Plan) -> bool:
    waited = state.now - request.since
    return plan.seconds <= saved_up(state) * _a_second(state) and WORTH * plan.seconds <= waited


def _may_relocate(state: State, container: Container) -> bool:
    able = preemption.may_be_moved(state, container) and container.relocatable and len(container.quota) == 1
    return able and state.now - container.relocated >= STAYS


def _helps(state: State, move: Move, request: Request, *, last: bool) -> bool:
    """Whether it would come back at once, in the place of the call for which it goes, and the call be granted."""
    step, name = Step(state), move.container.id
    step.state = changes.reassign(changes.put_out(state, name), name, {move.old: move.new})
    step.touched.update((move.old, move.new))
    step.swap_in(name, request.since)
    step.finish()
    if Restore(name) not in step.effects:
        return False
    if not last:
        return True
    back = moves.moved(step.state.containers[name], CameBack)
    after = Step(changes.put_container(step.state, back))
    after.touched.update((move.old, move.new))
    after.finish()
    granted = {each.container for each in (*step.effects, *after.effects) if isinstance(each, Served)}
    return request.container in granted


class _Search:
    """For one call: the cheapest of the plans that it comes to."""

    def __init__(self, state: State, request: Request, wanted: Collection[str]) -> None:
        """`wanted`: cards for which calls wait that are not behind this one."""
        self._state, self._request, self._left, self._wanted = state, request, EFFORT, frozenset(wanted)
        asking = {each.container for each in state.waiting}
        self._movers: dict[str, list[Container]] = {}
        for container in state.containers.values():
            if container.leased and container.id not in asking and _may_relocate(state, container):
                self._movers.setdefault(next(iter(container.quota)), []).append(container)
        for movers in self._movers.values():
            movers.sort(key=moves.size)

    def plan(self) -> Plan | None:
        state, gpu = self._state, self._request.gpu
        waits = state.containers[self._request.container]
        free = {card: reserved.free(state, card) for card in state.gpus}
        need = waits.quota[gpu] - waits.leased.get(gpu, 0)
        if sum(max(0, free[card]) for card, each in state.gpus.items() if not each.drained or card == gpu) < need:
            return None
        best: Plan | None = None
        if _may_relocate(state, waits):
            best = self._cheapest(self._goes(waits, gpu, Plan(0.0, (), free), MOST), None)
        return self._cheapest(self._room(gpu, need, Plan(0.0, (), free), MOST), best)

    @staticmethod
    def _cheapest(plans: Iterator[Plan], best: Plan | None) -> Plan | None:
        return min([*([best] if best else []), *(each for each in plans if each.moves)],
                   key=lambda each: (each.seconds, len(each.moves)), default=None)  # fmt: skip

    def _room(self, gpu: str, need: int, done: Plan, most: int) -> Iterator[Plan]:
        """Plans that go on from `done` by at most so many moves, after which so much is free on a card."""
        if done.free[gpu] >= need:
            yield done
            return
        if most <= 0:
            return
        for mover in self._movers.get(gpu, ()):
            if all(mover is not move.container for move in done.moves):
                for gone in self._goes(mover, gpu, done, most):
                    yield from self._room(gpu, need, gone, most - len(gone.moves) + len(done.moves))

    def _goes(self, container: Container, old: str, done: Plan, most: int) -> Iterator[Plan]:
        """Plans after which it has gone to some other card, with room for its quota there."""
        quota, held = container.quota[old], container.leased.get(old, 0)
        for new in self._targets(old, done):
            if self._left <= 0:
                return
            self._left -= 1
            if self._state.gpus[new].most < quota:
                continue
            for ready in self._room(new, quota, done, most - 1):
                move, free = Move(container, old, new), dict(ready.free)
                free[old], free[new] = free[old] + held, free[new] - quota
                seconds = ready.seconds + self._state.preemption.seconds(moves.size(container))
                yield Plan(seconds, (*ready.moves, move), free)

    def _targets(self, old: str, done: Plan) -> Sequence[str]:
        others = (gpu for gpu, card in self._state.gpus.items() if gpu != old and not card.drained)
        return sorted((gpu for gpu in others if gpu not in self._wanted), key=lambda gpu: -done.free[gpu])
