"""Every way in which the ranks of a small training can come to a cut, step by step: 2 to 4 ranks, 1 to 4 channels.

A rank begins an operation in the steps of shim/gate: it counts, looks whether the gate is asked and closed, calls, and
is back; its card does operations in order, each once all members of its channels have given theirs. The scheduler asks
one rank after the other, reads one page after the other, and writes one page after the other. At every state every
step of anybody is tried, in any order, and that a rank dies, or the scheduler. Of more than two ranks counting and
looking are one step, and asking and writing too: only a look is not.

Checked: at a cut nobody can begin anything, and every card comes to its end (so all can be locked); from each state in
which nobody died, if all go on, a cut is reached. Ranks are explored until one has begun RUN operations; what begins
only after the ask is bounded by the rule. `explore.py --cut` runs it; docs/turns.md has the counts.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any

from scheduler.core import cut
from scheduler.core.cut import Channel, Cut, Seat

Operation = tuple[Channel, ...]  # a group has several, or one several times
GOES, COUNTED, CALLS, HELD, DEAD = range(5)
EVER = 1e9  # seconds: for so long nobody has begun anything
LONGEST = 2000  # steps in which a cut must be reached from any state
MORE = 2  # operations beyond those before the ask: what the rule lets pass, and a look at the wrong instant

x, y = Channel(1), Channel(2)


def _pair(source: int, target: int) -> Channel:
    return Channel(1, source, target)


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """`programs`: rank → its operations, repeated for ever. `run`: how many are begun at most before the ask.

    `waits`: after each so-manieth operation the program waits until its card has done it.
    """

    name: str
    programs: tuple[tuple[Operation, ...], ...]
    members: dict[Channel, tuple[int, ...]]
    run: int = 2
    waits: int = 0

    def __str__(self) -> str:
        return self.name

    @property
    def coarse(self) -> bool:
        return len(self.programs) > 2

    def operation(self, rank: int, index: int) -> Operation:
        return self.programs[rank][index % len(self.programs[rank])]

    def counts(self, rank: int, operations: int) -> Counter[Channel]:
        return _counts(self.programs[rank], operations)


@cache
def _counts(program: tuple[Operation, ...], operations: int) -> Counter[Channel]:
    its = (program[index % len(program)] for index in range(operations))
    return Counter(channel for operation in its for channel in operation)


_TP = (Channel(10), Channel(11))  # of ranks 0, 1 and of 2, 3
_DP = (Channel(20), Channel(21))  # of ranks 0, 2 and of 1, 3
TRAININGS = (
    Training("one communicator", (((x,),),) * 2, {x: (0, 1)}, run=3),
    Training("one communicator, waited for", (((x,),),) * 2, {x: (0, 1)}, run=3, waits=2),
    Training("two communicators", (((x,), (y,), (y,)),) * 2, {x: (0, 1), y: (0, 1)}, run=3),
    Training("groups over two communicators", (((x, y), (x,), (y, y)),) * 2, {x: (0, 1), y: (0, 1)}, run=3),
    Training("one of three in the second", (((y,), (x,)), ((y,), (x,)), ((x,),)), {x: (0, 1, 2), y: (0, 1)}),
    Training(
        "a pipeline, one ahead",
        (((_pair(0, 1),), (_pair(0, 1),), (_pair(1, 0),)), ((_pair(0, 1),), (_pair(1, 0),), (_pair(0, 1),))),
        {_pair(0, 1): (0, 1), _pair(1, 0): (0, 1)},
        run=3,
    ),
    Training(
        "a ring of three, in groups",
        tuple(((_pair(rank, (rank + 1) % 3), _pair((rank + 2) % 3, rank)),) for rank in range(3)),
        {_pair(rank, (rank + 1) % 3): (rank, (rank + 1) % 3) for rank in range(3)},
    ),
    Training(
        "two by two",
        tuple(((_TP[rank // 2],), (_DP[rank % 2],)) for rank in range(4)),
        {_TP[0]: (0, 1), _TP[1]: (2, 3), _DP[0]: (0, 2), _DP[1]: (1, 3)},
        run=1,
    ),
)


@dataclass(frozen=True, slots=True)
class World:
    """`done`: operations that each rank's call has returned from. `page`: rank → its limits, None while not asked.

    `step`, `turn`: what the scheduler does next, and with which rank. `looks`: what it has read in this look.
    """

    done: tuple[int, ...]
    phase: tuple[int, ...]
    page: tuple[tuple[tuple[Channel, int], ...] | None, ...]
    step: str = "ask"
    turn: int = 0
    looks: tuple[tuple[Seat, ...], ...] = ()
    limits: tuple[tuple[Channel, int], ...] = ()


class Unsound(AssertionError):
    """A state that must not be; the message tells it."""


def explore(training: Training, kills: bool = False) -> int:
    """All states. Returns their number; raises Unsound. `kills`: ranks die, and the scheduler, at any step."""
    _advanced.cache_clear()
    ranks = len(training.programs)
    start = World((0,) * ranks, (GOES,) * ranks, (None,) * ranks)
    seen, frontier, reaching = {start}, [start], set[World]()
    while frontier:
        world = frontier.pop()
        if not (kills and (DEAD in world.phase or world.step == "dead")):
            _check(training, world)
            _reaches(training, world, reaching)
        for after in _steps(training, world, kills):
            if after not in seen:
                seen.add(after)
                frontier.append(after)
    return len(seen)


def _steps(training: Training, world: World, kills: bool) -> Iterator[World]:
    for rank in range(len(world.done)):
        yield from _rank(training, world, rank, training.run + (MORE if world.page[rank] is not None else 0))
        if kills and world.phase[rank] != DEAD and DEAD not in world.phase:
            yield _with(world, rank, DEAD)
    yield from _scheduler(training, world)
    if kills and world.step not in ("dead", "over"):
        yield replace(world, step="dead", turn=0, looks=(), limits=())
    if world.step == "dead" and any(page is not None for page in world.page):
        yield replace(world, page=(None,) * len(world.page))  # nobody has asked for a second: the gates are open


def _rank(training: Training, world: World, rank: int, most: float = inf) -> Iterator[World]:
    done, phase = world.done[rank], world.phase[rank]
    counted = COUNTED
    if training.coarse and phase in (GOES, HELD):
        counted = CALLS if _may(training, world, rank) else HELD
    if phase == GOES and done < most and not _waits(training, world, rank):
        yield _with(world, rank, counted)
    elif phase == COUNTED:
        yield _with(world, rank, CALLS if _may(training, world, rank) else HELD)
    elif phase == CALLS:
        yield replace(_with(world, rank, GOES), done=_put(world.done, rank, done + 1))
    elif phase == HELD and _may(training, world, rank):
        yield _with(world, rank, counted)


def _may(training: Training, world: World, rank: int) -> bool:
    page = world.page[rank]
    if page is None:
        return True
    counts, limits = training.counts(rank, world.done[rank] + 1), dict(page)
    return all(counts[channel] <= limits.get(channel, 0) for channel in training.operation(rank, world.done[rank]))


def _waits(training: Training, world: World, rank: int) -> bool:
    done = world.done[rank]
    return bool(training.waits and done and done % training.waits == 0) and _finished(training, world)[rank] < done


def _finished(training: Training, world: World) -> list[int]:
    """Operations that each card has done: in order, and none before all members have given theirs."""
    finished, moved = [0] * len(world.done), True
    given = [training.counts(rank, done) for rank, done in enumerate(world.done)]
    while moved:
        moved = False
        for rank, done in enumerate(world.done):
            if finished[rank] < done:
                counts = training.counts(rank, finished[rank] + 1)
                its = training.operation(rank, finished[rank])
                if all(given[m][channel] >= counts[channel] for channel in its for m in training.members[channel]):
                    finished[rank], moved = finished[rank] + 1, True
    return finished


def _scheduler(training: Training, world: World) -> Iterator[World]:
    ranks, turn = len(world.done), world.turn
    following = (turn + 1) % ranks
    if training.coarse and world.step in ("ask", "write"):
        limits = world.limits if world.step == "write" else ()
        yield replace(world, page=(limits,) * ranks, step="read", limits=())
    elif world.step == "ask":
        step = "ask" if turn + 1 < ranks else "read"
        yield replace(world, page=_put(world.page, turn, ()), step=step, turn=following)
    elif world.step == "read":
        looks = (*world.looks, () if world.phase[turn] == DEAD else _seats(training, world, turn))
        if turn + 1 < ranks:
            yield replace(world, looks=looks, turn=turn + 1)
            return
        for stalled in (False, True):
            after = _advanced(looks, stalled)
            limits = tuple(sorted(after.limits.items()))
            yield replace(world, step="over" if after.reached else "write", turn=0, looks=(), limits=limits)
    elif world.step == "write":
        step, limits = ("write", world.limits) if turn + 1 < ranks else ("read", ())
        page = _put(world.page, turn, world.limits)
        yield replace(world, page=page, step=step, limits=limits, turn=following)


@cache
def _advanced(looks: tuple[tuple[Seat, ...], ...], stalled: bool) -> Cut:
    before = {p: (sum(seat.begun for seat in seats), -EVER) for p, seats in enumerate(looks)} if stalled else {}
    return cut.advance(Cut(progress=before), 0.0, dict(enumerate(looks)))


def _seats(training: Training, world: World, rank: int) -> tuple[Seat, ...]:
    return _shown(training, rank, world.done[rank], world.phase[rank], world.page[rank] or ())


@cache
def _shown(
    training: Training, rank: int, done: int, phase: int, page: tuple[tuple[Channel, int], ...]
) -> tuple[Seat, ...]:
    given, limits = training.counts(rank, done), dict(page)
    next_counts = training.counts(rank, done + 1)
    begun = next_counts if phase in (COUNTED, CALLS) else given
    return tuple(
        Seat(channel, rank, len(its), begun[channel], given[channel], limits.get(channel, 0),
             next_counts[channel] if phase == HELD else 0)
        for channel, its in training.members.items() if rank in its
    )  # fmt: skip


def _check(training: Training, world: World) -> None:
    if world.step != "over":
        return
    if CALLS in world.phase or any(_may(training, world, rank) for rank in range(len(world.done))):
        raise Unsound(f"{training}: something can be begun after the cut: {world}")
    if _finished(training, world) != list(world.done):
        raise Unsound(f"{training}: a card never comes to its end: {world}")


def _reaches(training: Training, world: World, reaching: set[World]) -> None:
    """If all go on, one after the other, and each look sees who stalls."""
    way: list[World] = []
    for _ in range(LONGEST):
        if world.step == "over" or world in reaching:
            reaching.update(way)
            return
        way.append(world)
        for rank in range(len(world.done)):
            world = next(_rank(training, world, rank), world)
        world = list(_scheduler(training, world))[-1]
    raise Unsound(f"{training}: no cut is reached from {way[0]}")


def _with(world: World, rank: int, phase: int) -> World:
    return replace(world, phase=_put(world.phase, rank, phase))


def _put(its: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*its[:index], value, *its[index + 1 :])
