"""Every state of a small host with planned launches and reservations beside launches of the moment.

A launch of the moment arrives and ends at any time; a planned one is planned, its condition becomes true, its stand-in
is put into the memory queue, served, called off or lost with the scheduler, it begins, arrives and ends, and the
planner hears of that, with anything else in between. A reservation is made, begins (t1), is lent as nobody comes
(no-show), comes back by a claim, and ends (t2). What programs ask, use and free, and every outcome of an election, is
as in explorer.py, with the very code that decides in a running scheduler.

In every state all of `core/invariants.py` is checked, and everybody is completable. Beside them:

- Nothing of what is reserved for others is granted or promised, by plain sums, nor more than there is.
- From every state everybody is served and begins, once the reservations are over: whoever holds ends, one by one.
- The bound of `fair`: the head is served once those that held have ended, whoever is launched or begins meanwhile. A
  stand-in is a head like others.
- So a planned launch that is due begins though launches of the moment come again as soon as they have ended, for ever.
- Both bounds with what is reserved for others still in force, if there is room beside it on every card, also for the
  calls that go first; else from its end on.

Each step starts from a state whose times are rounded: due or not, and in which order.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from random import Random

from benchmarks.simulation.exploring.among_people import Step
from benchmarks.simulation.exploring.explorer import Broken, _events, _outcomes
from benchmarks.simulation.exploring.keys import LONG, NOW
from benchmarks.simulation.exploring.planned_checks import wrong_state, wrong_step
from benchmarks.simulation.exploring.planned_lab import (
    Lab,
    Play,
    arrives,
    is_ready,
    key_of,
    next_step,
    rounded,
    starts,
    without,
)  # fmt: skip
from scheduler.core.events import ContainerEnded, Event, ReservesChanged, SessionEnded, Ticked
from scheduler.core.reserved import NO_SHOW

Next = tuple[str, Play, Step]


def explore(lab: Lab, limit: int | None = None) -> int:
    """To the end, or to `limit` states. Returns the number of states; raises Broken."""
    start = lab.start()
    key = key_of(lab, start)
    came_from: dict[object, tuple[object, str]] = {key: (None, "")}
    frontier = deque([(key, start)])
    while frontier and (limit is None or len(came_from) < limit):
        key, play = frontier.popleft()
        for words, after, step in list(_steps(lab, play)):  # what is looked ahead then has elections of its own
            reached = key_of(lab, as_one := rounded(after))
            wrong = list(wrong_step(play, after, step))
            if reached not in came_from:
                came_from[reached] = (key, words)
                frontier.append((reached, as_one))
                wrong += wrong_state(lab, as_one)
            if wrong:
                raise Broken("\n".join([*_way(came_from, key), words, *wrong]))
    return len(came_from)


def walk(lab: Lab, seeds: Iterable[int], steps: int = 60) -> int:
    """So many steps at random from the start, once for each seed, for labs that are too large to explore. Returns the
    number of states; raises Broken."""
    seen = set[object]()
    for seed in seeds:
        chance, play, way = Random(seed), lab.start(), list[str]()
        for _ in range(steps):
            words, after, step = chance.choice(list(_steps(lab, play)))
            way.append(words)
            wrong = list(wrong_step(play, after, step))
            play = rounded(after)
            if (key := key_of(lab, play)) not in seen:
                seen.add(key)
                wrong += wrong_state(lab, play)
            if wrong:
                raise Broken("\n".join([*way, *wrong]))
    return len(seen)


def _way(came_from: Mapping[object, tuple[object, str]], key: object) -> list[str]:
    lines: list[str] = []
    while key is not None:
        key, words = came_from[key]
        lines.append(words)
    return lines[::-1]


# ---- what can happen --------------------------------------------------------------------------------------------


def _steps(lab: Lab, play: Play) -> Iterator[Next]:
    """Whatever can happen next, in words, what comes of it, and how the core answered."""
    for events in _events(lab.host, play.state):
        if not isinstance(events[0], SessionEnded):
            yield from _decided(lab, play, *events)
    state = play.state
    for name in state.containers:
        yield from _decided(lab, play, ContainerEnded(NOW, name))
    for name in lab.jobs:
        if name in state.containers and not (name in play.started and state.containers[name].stands_in):
            continue
        if name in play.started or name.startswith("l"):
            yield from _decided(lab, play, *arrives(lab, play, name))
        if name in play.started and name not in state.containers:
            yield f"the planner hears that {name} is over", without(play, name), ()
        elif name.startswith("p") and not play.is_planned(name):
            yield f"{name} is planned", replace(play, asked=play.asked | {name}), ()
    for name in sorted(play.asked):
        yield f"the condition of {name} holds", is_ready(lab, play, name), ()
    if any(NOW - each.since < LONG for each in play.queue):
        yield from _decided(lab, play, Ticked(NOW + LONG))
    if (event := next_step(play)) is not None:
        yield from _decided(lab, play, event)
    yield from ((f"{start} begins", after, ()) for start, after in starts(play))
    for each in play.queue:
        rest = tuple(other for other in play.queue if other is not each)
        yield f"{each.id} is held", replace(play, queue=rest, asked=play.asked | {each.id}), ()
    yield from _of_reservations(lab, play)


def _decided(lab: Lab, play: Play, *events: Event) -> Iterator[Next]:
    for state, step in _outcomes(lab.host, play.state, events):
        yield str(step), replace(play, state=state), step


def _of_reservations(lab: Lab, play: Play) -> Iterator[Next]:
    state = play.state
    known = {each.id for each in state.reserves}
    for name in sorted({each.id for each in lab.reserves()}):
        others = [each for each in state.reserves if each.id != name]
        its = [each for each in state.reserves if each.id == name]
        if name not in known:
            made = [each for each in lab.reserves() if each.id == name]
            yield from _decided(lab, play, ReservesChanged(NOW, (*others, *made)))
            continue
        if its[0].begins > NOW:
            begun = [replace(each, begins=NOW) for each in its]
            yield from _decided(lab, play, ReservesChanged(NOW, (*others, *begun)))
        elif any(each.is_kept for each in its):
            alone = [replace(each, begins=NOW - NO_SHOW, seen=NOW - NO_SHOW) for each in its]
            unseen = replace(play, state=replace(state, reserves=(*others, *alone)))
            yield from _decided(lab, unseen, Ticked(NOW))
        over = [replace(each, begins=min(each.begins, NOW - 1), ends=NOW) for each in its]
        yield from _decided(lab, play, ReservesChanged(NOW, (*others, *over)))
    if any(not each.is_kept for each in state.reserves):
        yield from _decided(lab, play, Ticked(NOW))
