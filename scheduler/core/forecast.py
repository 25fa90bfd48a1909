"""What if: would a container with this quota get its memory now; if not, behind whom, and by when at the latest."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from scheduler.core import admission, reserved, safety
from scheduler.core.admission import size
from scheduler.core.arbiter import handle
from scheduler.core.effects import Granted, TakeBack
from scheduler.core.events import ContainerEnded, Event, Needed, Returned
from scheduler.core.people.standing import Place, place
from scheduler.core.state import Container, Request, State

NAMED = 3  # of those who wait; the others are counted
WHOLE = 1 << 40  # serials from here on are no program's: calls for the rest of a quota
STEPS = 64  # ends that an forecasts looks ahead
TRIED = 4  # containers whose end is tried out for one call: each trial costs as much as a decision


@dataclass(frozen=True, slots=True)
class Forecast:
    """`fits`: its whole quota could be granted at once, now.

    Otherwise `behind` are the containers that wait for the same GPUs, first in line first, and `holders` those whose
    memory it waits for. `latest` is the time (on the state's clock) by which it has its whole quota at the latest;
    None if nobody can know, because one of those has no time limit. `possible` is false if no waiting can help.
    `place`: where `person` stands on these GPUs, if one was named.
    """

    fits: bool
    possible: bool
    behind: tuple[str, ...]
    holders: tuple[str, ...]
    latest: float | None
    explanation: str
    place: Place | None = None


def forecast(
    state: State,
    quota: Mapping[str, int],
    ends: Mapping[str, float] | None = None,
    idle: Mapping[str, int] | None = None,
    names: Mapping[str, str] | None = None,
    person: str | None = None,
) -> Forecast:
    """Answers for a container that is not here, or for one that is and waits.

    `quota`: GPU → bytes, as for a launch. `ends`: container → the time (on the state's clock) by which its time limit
    ends it; those without a limit left out. `idle`: GPU → bytes of headroom that a take-back would collect.
    `names`: container → what people call it.

    The bound takes the worst: every other container, also one that still waits, takes its whole quota and keeps it
    until its time limit.
    """
    refused = admission.impossible(state, Container("", quota))
    if refused is not None:
        return Forecast(False, False, (), (), None, refused.explanation)
    ends, idle = ends or {}, idle or {}
    where = None if person is None else place(state, person, quota)
    behind = tuple(dict.fromkeys(r.container for r in state.waiting if r.gpu in quota))
    short = {
        gpu: amount - free
        for gpu, amount in quota.items()
        if amount > (free := _free(state, gpu, idle.get(gpu, 0), person))
    }
    if not short and not behind:
        return Forecast(True, True, (), (), state.now, "Fits now.", where)
    holders = {name: None for gpu in short for name in state.gpus[gpu].members if _holds(state, name, gpu)}
    latest = max(_room_by(state, gpu, amount, ends, person) for gpu, amount in quota.items())
    known = None if latest == inf else max(state.now, latest)
    explanation = _explain(state, short, [(names or {}).get(each, each) for each in behind], known)
    return Forecast(False, True, behind, tuple(holders), known, explanation, where)


def next_after(state: State, request: Request, ends: Mapping[str, float]) -> str | None:
    """A container whose end alone lets this call go on, by what the arbiter itself would then do; None if none does.

    Of several it is the one that a time limit (`ends`, as above) ends first. Who is paused or waits does not end by
    itself and is not named.
    """
    waiting = {request.container for request in state.waiting}
    missing = request.bytes - safety.free(state, request.gpu)
    able = [
        name
        for name in state.gpus[request.gpu].members
        if name not in waiting and not state.containers[name].paused
        if safety.held(state.containers[name], request.gpu) >= max(missing, 1)
    ]
    for name in sorted(able, key=lambda name: ends.get(name, inf))[:TRIED]:
        _, effects = handle(state, ContainerEnded(state.now, name))
        if any(isinstance(e, Granted) and (e.session, e.serial) == (request.session, request.serial) for e in effects):
            return name
    return None


@dataclass(frozen=True, slots=True)
class GoesOn:
    """A container that waits is served once all in `after` have ended (`paused`: those of them that stand still now).

    `at` is when that is, on the state's clock; None if the end of one of them is not known.
    """

    container: str
    after: tuple[str, ...]
    paused: tuple[str, ...]
    at: float | None


def forecasts(state: State, ends: Mapping[str, float], lasts: Mapping[str, float]) -> Iterator[GoesOn | None]:
    """Plays on from here: who ends next, as far as that is known, and who is served by it. None after each end.

    `ends`: container → the time by which it ends, those not known left out. `lasts`: how many seconds those that wait
    go on for once they are served. Whoever is served asks for the rest of its quota at once, and goes on when it has
    that: so safety judges, too. Who is paused ends last, since somebody has to resume it first. Each end costs as much
    as a few decisions: the caller may pause there.
    """
    left = {call.container for call in state.waiting if call.suspended}
    known, ended, moment = dict(ends), list[str](), state.now
    still = {name for name, container in state.containers.items() if container.paused}
    others = {  # container → those on its GPUs, and on all that are linked with them
        call.container: {name for gpu in safety.linked(state, [call.gpu]) for name in state.gpus[gpu].members}
        for call in state.waiting
    }
    for _ in range(STEPS):
        name = _ends_next(state, known)
        if not left or name is None:
            return
        ended.append(name)
        moment = max(moment, known.get(name, inf))
        state = _play(state, ContainerEnded(state.now, name))
        waiting = {call.container for call in state.waiting}
        for served in sorted(left - waiting):
            left.discard(served)
            known[served] = min(known.get(served, inf), moment + lasts.get(served, inf))
            after = tuple(each for each in ended if each in others[served])
            at = max((known.get(each, inf) for each in after), default=moment)
            yield GoesOn(served, after, tuple(each for each in after if each in still), None if at == inf else at)
        yield None


def _play(state: State, event: Event) -> State:
    """What comes of it, if there is no headroom to take back, and whoever is served wants all that it may have."""
    events = deque([event])
    while events:
        state, effects = handle(state, events.popleft())
        for effect in effects:
            if isinstance(effect, TakeBack):
                events.append(Returned(state.now, effect.gpu, {}, all=True))
            elif isinstance(effect, Granted) and effect.serial <= WHOLE:
                container = state.containers[effect.container]
                for number, (gpu, quota) in enumerate(container.quota.items(), WHOLE + effect.serial + 1):
                    if (rest := quota - container.leased.get(gpu, 0) - container.out.get(gpu, 0)) > 0:
                        events.append(Needed(state.now, effect.session, number, gpu, rest))
    return state


def _ends_next(state: State, ends: Mapping[str, float]) -> str | None:
    """Of those that can end and would give back something that somebody waits for, with them."""
    waiting = {call.container for call in state.waiting}
    wanted = {gpu: call.bytes - safety.free(state, gpu) for call in reversed(state.waiting) for gpu in [call.gpu]}
    short = dict[str, bool]()  # container → whether what it gives back is too little for whoever came first
    for gpu in safety.linked(state, wanted):
        for name in state.gpus[gpu].members:
            held = safety.held(state.containers[name], gpu)
            if name not in waiting and held > 0:
                short[name] = short.get(name, True) and held < wanted.get(gpu, 1)
    return min(short, key=lambda name: (state.containers[name].paused, ends.get(name, inf), short[name]), default=None)


def _free(state: State, gpu: str, idle: int, person: str | None) -> int:
    return max(0, reserved.free(state, gpu, person) + idle)


def _holds(state: State, name: str, gpu: str) -> bool:
    return safety.held(state.containers[name], gpu) > 0


def _room_by(state: State, gpu: str, amount: int, ends: Mapping[str, float], person: str | None) -> float:
    """When so many containers have met their time limit that `amount` fits beside all that is promised to the rest, and
    reserved for others then."""
    card = state.gpus[gpu]
    promised = [(-inf, ends.get(name, inf), state.containers[name].quota[gpu]) for name in card.members]
    others = (each for each in state.reserves if each.gpu == gpu and person not in each.people)
    promised += [(-inf if each.is_kept else each.begins, each.ends, each.bytes) for each in others]
    for at in sorted({state.now, *(end for _, end, _ in promised if state.now < end < inf)}):
        if card.capacity - sum(size for begins, end, size in promised if begins <= at < end) >= amount:
            return at
    return inf


def _explain(state: State, short: Mapping[str, int], behind: Sequence[str], latest: float | None) -> str:
    parts = [f"GPU {gpu} lacks {size(missing)}" for gpu, missing in short.items()]
    if behind:
        parts.append(f"{_named(behind)} {'waits' if len(behind) == 1 else 'wait'} already")
    if latest is None:
        parts.append("no estimate: containers without a time limit hold or want the memory")
    else:
        parts.append(
            f"fits in {max(0.0, latest - state.now):.0f} s at the latest, when time limits end other containers"
        )
    text = "; ".join(parts)
    return f"{text if behind and not short else text[0].upper() + text[1:]}."  # a name is left as it is


def _named(names: Sequence[str]) -> str:
    """The first few: "a", "a and b", "a, b, c and 26 others"."""
    shown = [*names[:NAMED], *([f"{more} others"] if (more := len(names) - NAMED) > 1 else names[NAMED:])]
    *first, last = shown
    return f"{', '.join(first)} and {last}" if first else last
