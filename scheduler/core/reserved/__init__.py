"""Memory that is reserved for people from one time to another: how much of a GPU is kept for them now.

A reservation in force is a claim like that of a guaranteed container: so many bytes count as held, and those of its
people draw from them first. For the banker's check (`safety.py`) it is a holder that asks for nothing and that ends: at
its end, when all of it is anybody's. Such a holder is first in every order of endings, so it makes nobody incompletable
and takes no part in the check: what is kept is only left out of what is free. So every grant is still one that the
check allows, and no two containers wait for each other; but one of somebody else may wait up to its end longer.

    kept = bytes − what containers of its people hold on that GPU

Of several that a container could draw from, the one of the fewest people counts its memory. A reservation is in force
from its begin, less the time in which others can be moved away (`giving.py`), to its end. While none of its people has
a container there for NO_SHOW seconds it is lent: nothing is kept, until one comes. What is over keeps nothing, and
nobody has to leave for that. All times are on the state's clock, which nobody can set.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite

from scheduler.core import safety
from scheduler.core.state import Container, Request, Reserve, State

NO_SHOW = 900.0  # seconds without a container of its people, after which it is lent to others


Promised = Sequence[tuple[str, int]]  # person, bytes: beyond what containers hold. They draw on what is kept, too.


def kept(state: State, gpu: str, owner: str | None = None, promised: Promised = ()) -> int:
    """Bytes of a GPU that are free only for others than this person; None: that are kept for anybody."""
    if not state.reserves:
        return 0
    return sum(left for reserve, left in _left(state, gpu, promised) if owner not in reserve.people)


def free(state: State, gpu: str, owner: str | None = None, promised: Promised = ()) -> int:
    """Bytes that this person can have now. Below zero where more is kept or promised than there is."""
    return safety.free(state, gpu) - sum(size for _, size in promised) - kept(state, gpu, owner, promised)


def right(state: State, gpu: str, owner: str, promised: Promised = ()) -> int:
    """Bytes that are kept for this person, also together with others."""
    return sum(left for reserve, left in _left(state, gpu, promised) if owner in reserve.people)


def short(state: State, gpu: str) -> int:
    """Bytes that are kept on a GPU and that others hold still; 0 or less: all of it is there."""
    return kept(state, gpu) - safety.free(state, gpu)


def short_gpus(state: State) -> set[str]:
    """Those on which something lacks: what others free there is reported at once, and their headroom taken back."""
    return {reserve.gpu for reserve in state.reserves if reserve.is_kept and short(state, reserve.gpu) > 0}


def pressed(state: State) -> set[str]:
    """GPUs on which somebody waits, or something that is kept lacks."""
    return {request.gpu for request in state.waiting} | (short_gpus(state) if state.reserves else set())


def entitled(state: State, gpu: str, requests: Iterable[Request]) -> list[Request]:
    """Those of them whose containers' whole claims are kept for their people: no policy has a say over these."""
    if not state.reserves:
        return []
    return [r for r in requests if _claim(state, r) <= right(state, gpu, state.containers[r.container].owner)]


def people_of(state: State, gpu: str, beside: str | None = None) -> frozenset[str]:
    """All who have a right to something that is kept on this GPU; or only to what this person has a right to, too."""
    here = (each.people for each in state.reserves if each.gpu == gpu and each.is_kept)
    return frozenset().union(*(people for people in here if beside is None or beside in people))


def _claim(state: State, request: Request) -> int:
    container = state.containers[request.container]
    return max(request.bytes, container.quota[request.gpu] - safety.held(container, request.gpu))


def _left(state: State, gpu: str, promised: Promised = ()) -> Iterator[tuple[Reserve, int]]:
    """Each that is kept here, with what of it its people have not taken."""
    here = [each for each in state.reserves if each.gpu == gpu and each.is_kept]
    rest = [*((each.owner, safety.held(each, gpu)) for each in _members(state, gpu)), *promised] if here else []
    for reserve in sorted(here, key=lambda each: (len(each.people), each.id)):
        amount = reserve.bytes
        for place, (owner, bytes_) in enumerate(rest):
            if owner in reserve.people and (taken := min(amount, bytes_)):
                rest[place] = owner, bytes_ - taken
                amount -= taken
        yield reserve, amount


def _members(state: State, gpu: str) -> Iterator[Container]:
    return (state.containers[name] for name in state.gpus[gpu].members)


def of_others(state: State, gpu: str, owner: str, lasts: float = inf) -> int:
    """The most bytes of a GPU that are reserved for others than this person at one moment of so many seconds from now.
    As web/services/booked/capacity.py reckons it of the records."""
    theirs = [
        each
        for each in state.reserves
        if each.gpu == gpu and owner not in each.people and each.begins < state.now + lasts
    ]
    moments = {max(each.begins, state.now) for each in theirs}
    return max((sum(r.bytes for r in theirs if r.begins <= at < r.ends) for at in moments), default=0)


def spoken_for(state: State, gpu: str, owner: str, lasts: float = inf) -> int:
    """Bytes of a GPU that all containers there may have, and that are reserved for others than this person."""
    quotas = sum(state.containers[name].quota[gpu] for name in state.gpus[gpu].members)
    return quotas + of_others(state, gpu, owner, lasts)


# ---- time ---------------------------------------------------------------------------------------------------------


def heard(state: State, reserves: Sequence[Reserve]) -> tuple[Reserve, ...]:
    """What is known of reservations from now on; what was in force stays so. Those on GPUs that are gone count not."""
    before = {(each.id, each.gpu): each for each in state.reserves}
    found = []
    for each in reserves:
        if each.gpu in state.gpus:
            known = before.get((each.id, each.gpu))
            found.append(replace(each, seen=known.seen, is_kept=known.is_kept) if known else each)
    return tuple(found)


def sound(reserve: Reserve) -> bool:
    return reserve.bytes > 0 and isfinite(reserve.begins) and isfinite(reserve.ends) and reserve.begins < reserve.ends


def passed(state: State, lead: float) -> tuple[Reserve, ...]:
    """As of now: which are kept, which are lent because nobody came, which are over. `lead`: seconds by which they are
    kept before they begin, as others have to be moved."""
    there = {each.id for each in state.reserves if _is_there(state, each)}
    after = []
    for each in state.reserves:
        if each.ends <= state.now:
            continue
        since = max(each.begins, state.now if each.id in there else each.seen)
        begun = each.is_kept or each.begins - lead <= state.now  # with each move that is done the lead is shorter
        is_kept = begun and state.now < since + NO_SHOW
        if (since, is_kept) != (each.seen, each.is_kept):
            each = replace(each, seen=since, is_kept=is_kept)
        after.append(each)
    return tuple(after)


def _is_there(state: State, reserve: Reserve) -> bool:
    return any(each.owner in reserve.people and not each.killed for each in _members(state, reserve.gpu))
