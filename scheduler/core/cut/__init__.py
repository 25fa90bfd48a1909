"""Where the ranks of a training can all be stopped: at a cut, where whatever one of them has begun all have begun.

A rank gives its card collectives that are done only when its siblings have given theirs. If a sibling is locked before,
the first one's card is never done, and it cannot be locked. So each rank counts what it begins, and a gate in it holds
back what would go beyond a limit (shim/gate/gate.h). `advance` looks at the counts and says what the limits are to be,
until a cut is reached. It is pure; docs/turns.md has the proof that it ends.

An *operation* is a collective, a send or receive, a group of them, or the launch of a graph that has some. A *channel*
is what its members begin operations on in one order: a communicator; for sends, an ordered pair of ranks. A *seat* is
one member of a channel; a process may have several.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

STALLED = 0.003  # seconds without a beginning: what a process holds back may be in the way of what others wait for


class Channel(NamedTuple):
    """`source` and `target`: ranks, of sends; −1 both: collectives."""

    communicator: int
    source: int = -1
    target: int = -1


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's end of a channel. `begun`: operations so far; `given`: of those, given to the card; never more.

    `limit`: how far `begun` may go. `wanted`: the furthest that was held back. `ranks`: of the communicator; 0: not
    known yet. `left`: it begins nothing more.
    """

    channel: Channel
    rank: int
    ranks: int
    begun: int
    given: int
    limit: int = 0
    wanted: int = 0
    left: bool = False


Looks = Mapping[int, Sequence[Seat]]  # process → its seats, read after the limits that they show were in force


@dataclass(frozen=True, slots=True)
class Cut:
    """`limits`: how far each seat of a channel may go from now on. `reached`: and none will, until the limits change.

    `behind`: processes that have begun less on some channel than others. `calling`: those within a call to NCCL.
    `progress`: process → what it has begun in sum, and since when.
    """

    limits: Mapping[Channel, int] = field(default_factory=dict)
    behind: frozenset[int] = frozenset()
    calling: frozenset[int] = frozenset()
    reached: bool = False
    progress: Mapping[int, tuple[int, float]] = field(default_factory=dict)


def advance(cut: Cut, now: float, looks: Looks) -> Cut:
    """A process that is behind may have to begin something else first, for which it is held back itself.

    It is let go on with that once it has begun nothing for STALLED, and the other members of that channel follow.
    """
    looks = {process: [seat for seat in seats if not seat.left] for process, seats in paired(looks).items()}
    limits: dict[Channel, int] = defaultdict(int)
    for seats in looks.values():
        for seat in seats:
            limits[seat.channel] = max(limits[seat.channel], seat.begun)
    behind = frozenset(p for p, seats in looks.items() if any(seat.begun < limits[seat.channel] for seat in seats))
    calling = frozenset(p for p, seats in looks.items() if any(seat.given < seat.begun for seat in seats))
    in_force = all(seat.limit == limits[seat.channel] for seats in looks.values() for seat in seats)
    progress = {process: _progress(cut, now, process, seats) for process, seats in looks.items()}
    for process in behind:
        if now - progress[process][1] >= STALLED:
            for seat in looks[process]:
                limits[seat.channel] = max(limits[seat.channel], seat.wanted)
    return Cut(dict(limits), behind, calling, in_force and not behind and not calling, progress)


def _progress(cut: Cut, now: float, process: int, seats: Iterable[Seat]) -> tuple[int, float]:
    begun = sum(seat.begun for seat in seats)
    before = cut.progress.get(process)
    return before if before is not None and before[0] == begun else (begun, now)


def paired(looks: Looks) -> Looks:
    """With the ends of sends that have no seat yet, as nothing was begun there; without ranks that are alone."""
    whose = {
        (seat.channel.communicator, seat.rank): process
        for process, seats in looks.items()
        for seat in seats
        if not seat.left
    }
    there = {(seat.channel, seat.rank) for seats in looks.values() for seat in seats}
    whole = {process: [seat for seat in seats if seat.ranks != 1] for process, seats in looks.items()}
    for seat in [seat for seats in whole.values() for seat in seats if seat.channel.source >= 0]:
        other = seat.channel.source + seat.channel.target - seat.rank
        process = whose.get((seat.channel.communicator, other))
        if process is not None and (seat.channel, other) not in there:
            whole[process].append(replace(seat, rank=other, begun=0, given=0, limit=0, wanted=0, left=False))
    return whole


def missing(looks: Looks) -> dict[int, int]:
    """Communicators in use, some of whose ranks are in none of these processes → how many of them."""
    ranks: dict[int, set[int]] = defaultdict(set)
    sizes: dict[int, int] = {}
    for seat in (seat for seats in looks.values() for seat in seats if seat.channel.source < 0):
        ranks[seat.channel.communicator].add(seat.rank)
        if seat.begun and not seat.left:
            sizes[seat.channel.communicator] = seat.ranks
    return {each: size - len(ranks[each]) for each, size in sizes.items() if size > len(ranks[each])}


def together(communicators: Mapping[str, Collection[object]]) -> dict[str, str]:
    """Containers that share some, directly or by others → the first of them. Those that share none are left out."""
    groups: dict[str, set[str]] = {id_: {id_} for id_ in communicators}
    first: dict[object, str] = {}
    for id_, its in communicators.items():
        for each in its:
            group = groups[first.setdefault(each, id_)] | groups[id_]
            groups.update(dict.fromkeys(group, group))
    return {id_: min(group) for id_, group in groups.items() if len(group) > 1}
