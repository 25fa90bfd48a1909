"""Small hosts with planned launches and reservations, for `planned_explorer.py`: what they have, where they stand, and
one state for all that go on alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import NamedTuple

from benchmarks.simulation.exploring import among_people
from benchmarks.simulation.exploring.keys import LONG, NOW, Host
from scheduler.core import changes, fair, reserved, safety
from scheduler.core.events import ContainerAdded, Event, SessionOpened
from scheduler.core.planned.order import Candidate, Queue, Shape
from scheduler.core.reserved import NO_SHOW
from scheduler.core.state import Gpu, Mode, Preemption, Reserve, State

AHEAD = 100 * NO_SHOW  # seconds before its begin at which a reservation is made
FOREVER = 1e9


class Job(NamedTuple):
    """`units` for `owner`. A launch of the moment and a reservation are on `cards` cards from number `first` on."""

    owner: str
    units: int
    cards: int = 1
    first: int = 0

    @property
    def gpus(self) -> list[str]:
        return [f"g{number}" for number in range(self.first, self.first + self.cards)]


@dataclass(frozen=True)
class Lab:
    """What is explored. `moves`: holders can be moved for a reservation."""

    capacity: int
    launched: tuple[Job, ...] = ()
    planned: tuple[Job, ...] = ()
    reserved: tuple[Job, ...] = ()
    gpus: int = 1
    policy: str = "fair"
    moves: bool = False

    @cached_property
    def host(self) -> Host:
        return Host(self.capacity, ((self.capacity,) * self.gpus,), self.policy)

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """By the name of its container."""
        launched = {f"l{number}": job for number, job in enumerate(self.launched)}
        return launched | {f"p{number}": job for number, job in enumerate(self.planned)}

    def reserves(self) -> Iterator[Reserve]:
        for number, job in enumerate(self.reserved):
            for gpu in job.gpus:
                yield Reserve(f"r{number}", gpu, job.units, frozenset([job.owner]), NOW + AHEAD, NOW + FOREVER)

    def start(self) -> Play:
        gpus = {f"g{number}": Gpu(f"g{number}", self.capacity, self.capacity) for number in range(self.gpus)}
        rule = Preemption(Mode.OFF, out=inf, back=inf, least=0.0, able=self.moves)
        return Play(State(gpus=gpus, policy=self.policy, preemption=rule, now=NOW))


@dataclass(frozen=True, slots=True)
class Play:
    """`asked`: planned ones whose conditions do not hold yet. `queue`: those of which they do. `started`: those that
    have begun, arrived or not, and the quota of each."""

    state: State
    asked: frozenset[str] = frozenset()
    queue: tuple[Candidate, ...] = ()
    started: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def is_planned(self, name: str) -> bool:
        return name in self.asked or name in self.started or any(each.id == name for each in self.queue)


LABS = (
    Lab(2, launched=(Job("b", 1), Job("c", 1)), planned=(Job("a", 2),)),
    Lab(2, planned=(Job("a", 1), Job("b", 2), Job("c", 2))),
    Lab(2, launched=(Job("b", 2),), planned=(Job("a", 1), Job("c", 2)), reserved=(Job("a", 1),)),
    Lab(2, launched=(Job("b", 2),), planned=(Job("a", 2),), reserved=(Job("a", 2),), moves=True),
    Lab(1, launched=(Job("b", 1),), planned=(Job("a", 1, 2),), reserved=(Job("b", 1, 1, 1),), gpus=2),
)
LARGE = (
    Lab(6, (Job("a", 4), Job("b", 3), Job("c", 6)), (Job("a", 2), Job("b", 5), Job("c", 6), Job("c", 1)),
        (Job("a", 3), Job("b", 2))),
    Lab(4, (Job("a", 4), Job("b", 3), Job("c", 2, 2)), (Job("a", 2), Job("b", 4), Job("c", 3, 2)),
        (Job("a", 3, 1), Job("b", 2, 1, 1)), gpus=2, moves=True),
)  # fmt: skip


# ---- what planned launches do -----------------------------------------------------------------------------------


def arrives(lab: Lab, play: Play, name: str) -> list[Event]:
    job = lab.jobs[name]
    quota = play.started.get(name, dict.fromkeys(job.gpus, job.units))
    session = 1 + max(play.state.sessions, default=-1)
    return [ContainerAdded(play.state.now, name, quota, job.owner), SessionOpened(play.state.now, session, name)]


def without(play: Play, name: str) -> Play:
    return replace(play, started={other: its for other, its in play.started.items() if other != name})


def is_ready(lab: Lab, play: Play, name: str) -> Play:
    job, number = lab.jobs[name], len(play.queue)
    candidate = Candidate(name, job.owner, play.state.now, Shape(job.units, job.cards), 0, number, name)
    return replace(play, asked=play.asked - {name}, queue=(*play.queue, candidate))


def next_step(play: Play) -> Event | None:
    """What the planner tells the core next."""
    state = play.state
    return next(_queue(play).steps(lambda: state, state.now, play.started), None)


def starts(play: Play) -> Iterator[tuple[str, Play]]:
    """Those that may begin."""
    for its, gpus in _queue(play).promised(play.state):
        rest = tuple(each for each in play.queue if each != its)
        yield its.id, replace(play, queue=rest, started={**play.started, its.id: dict.fromkeys(gpus, its.shape.quota)})


def _queue(play: Play) -> Queue:
    queue = Queue()
    for each in play.queue:
        queue.put(each)
    return queue


# ---- one state for all that go on alike -------------------------------------------------------------------------


def rounded(play: Play) -> Play:
    state = play.state
    numbers = {key: number for number, each in enumerate(state.containers.values()) for key in each.sessions}
    stands = dict.fromkeys(each.session for each in state.waiting if each.session < 0)
    numbers |= {session: -1 - number for number, session in enumerate(stands)}
    later = {at: number for number, at in enumerate(sorted({each.since for each in state.waiting}))}
    waiting = tuple(
        replace(each, session=numbers[each.session], serial=each.serial if each.back or each.session < 0 else 0,
                since=_ago(state.now - each.since, later[each.since] - len(later)))
        for each in state.waiting
    )  # fmt: skip
    containers = {
        name: replace(each, sessions=tuple(numbers[key] for key in each.sessions), arrived=NOW, waited=0.0,
                      held_since=NOW, stays_until=-inf, began=NOW if _begins(state, name) else -inf)
        for name, each in state.containers.items()
    }  # fmt: skip
    sessions = {numbers[key]: replace(each, id=numbers[key]) for key, each in state.sessions.items()}
    reserves = tuple(map(_as_of_now, state.reserves, [state.now] * len(state.reserves)))
    places = [among_people.places(state, name) for name in containers]
    state = replace(state, containers=containers, sessions=sessions, waiting=waiting, reserves=reserves, now=NOW,
                    grants=0)  # fmt: skip
    pressed = frozenset(safety.linked(state, reserved.pressed(state)))
    state = replace(state, pressed=pressed, calm=safety.calm(state), people=changes.counted(state))
    state = among_people.with_heads(state, places)
    now, times = play.state.now, sorted({each.since for each in play.queue})
    to = {at: _ago(now - at, number - len(times)) for number, at in enumerate(times)}
    return replace(play, state=state, queue=tuple(replace(each, since=to[each.since]) for each in play.queue))


def _ago(seconds: float, place: int) -> float:
    return NOW - (LONG if seconds >= LONG else 0.0) + place / 1000


def _begins(state: State, name: str) -> bool:
    each = state.containers[name]
    return state.policy == "fair" and bool(each.leased) and state.now - each.began < fair.STARTING


def _as_of_now(reserve: Reserve, now: float) -> Reserve:
    """Made, in force, or lent."""
    if reserve.begins > now:
        return replace(reserve, begins=NOW + AHEAD, ends=NOW + FOREVER, seen=-inf)
    seen = NOW if reserve.is_kept else NOW - NO_SHOW - 1
    return replace(reserve, begins=seen - 1, ends=NOW + FOREVER, seen=seen)


def key_of(lab: Lab, play: Play) -> object:
    state = play.state
    order = sorted({each.since for each in play.queue})
    calls: dict[str, list[object]] = {name: [] for name in state.containers}
    for place, each in enumerate(state.waiting):
        calls[each.container].append((place, each.gpu, each.bytes, NOW - each.since >= LONG, each.back))
    ready = {each.id: (NOW - each.since >= LONG, order.index(each.since)) for each in play.queue}
    parts = []
    for name, job in lab.jobs.items():
        there: tuple[object, ...] = ()
        if its := state.containers.get(name):
            there = (its.stands_in, its.guaranteed, tuple(its.quota), tuple(its.leased.items()),
                     tuple(its.out.items()), its.stage, _begins(state, name), calls[name],
                     among_people.places(state, name))  # fmt: skip
        promised = tuple(play.started[name]) if name in play.started else None
        parts.append(repr((name[0], job, name in play.asked, ready.get(name), promised, there)))
    reserves = tuple((each.id, each.gpu, each.is_kept, each.begins > NOW) for each in state.reserves)
    return tuple(sorted(parts)), reserves
