"""Turns of computing on a simulated clock: the same decisions as the live scheduler's, with programs that drain.

A program computes without end, or for a while every so often, like a notebook. Those that run at the same time divide
the card, and lose LOSS of it in sum. What is locked still computes until what it had given to the card is done. Looks
see who computed, as NVML does. Times are those measured: a lock takes 0.6 ms where nothing is queued, 15 ms with large
kernels, 20 to 60 ms with a training that runs ahead, 0.8 s with 1,500 kernels queued; an unlock 0.5 ms.

`python -m benchmarks.simulation --turns` prints it; docs/turns.md has the tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from scheduler.core.people.tree import Tree
from scheduler.core.turns import (
    CardSeen,
    Charged,
    Computes,
    Event,
    Joined,
    Left,
    Mode,
    Rests,
    Rules,
    Started,
    Stop,
    Stopped,
    Ticked,
    Turns,
    Yields,
    debt,
    decide,
    standing,
    wake,
)

LOSS = 0.08  # of the card, while several compute at once
LOCK, UNLOCK = 0.0006, 0.0005  # seconds that the calls take, draining apart
LATE = 0.001  # seconds after which the scheduler does what it was to do at a time
LOOK = 1 / 6  # seconds between two samples of who computes
GLANCE = 0.02  # seconds between two looks at who uses a processor
GLANCES = "\0"  # on the agenda
ENOUGH = 0.04  # seconds without a lock from which a look can tell
WINDOW = 10.0  # seconds


@dataclass(frozen=True, slots=True)
class Program:
    """`drain`: seconds of work that it has given to the card in advance. `busy` of every `every` seconds, or always.

    `spins`: it uses a processor all the while that it computes; one that sleeps meanwhile looks as if it rested.
    `lives`: seconds of work after which it ends, and its owner launches the next one, whose memory is withheld while
    they owe more than a quantum.
    """

    name: str
    drain: float = 0.015
    weight: int = 100
    limit: int | None = None
    priority: int = 0
    gpus: tuple[str, ...] = ("g",)
    busy: float = inf
    every: float = inf
    spins: bool = True
    owner: str = ""
    lives: float = inf


@dataclass(slots=True)
class _Running:
    """`work`: seconds left of what it wants to compute. `flow`: of what drains, while it is being locked."""

    program: Program
    id: str
    work: float = 0.0
    asked: float | None = None  # when this burst began
    locked: bool = False
    flow: float | None = None
    had: float = 0.0
    done: float = 0.0  # seconds of work, as it would have taken alone
    seen: float = 0.0  # of the time since the last look in which it computed
    open: float = 0.0  # of it, not locked
    stirred: float = 0.0  # when it last used a processor
    opened: float = 0.0  # when it was last let go
    bursts: list[float] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return not self.locked and self.work > 0 and (self.flow is None or self.flow > 0)


@dataclass(frozen=True, slots=True)
class Played:
    """`had` and `due`: seconds at the end of each of 0.1 s, by program. `done`: work. `bursts`: how long each took."""

    had: dict[str, list[float]]
    due: dict[str, list[float]]
    done: dict[str, float]
    bursts: dict[str, list[float]]
    stops: int


def play(
    programs: Sequence[Program],
    seconds: float,
    cycle: float = 1.0,
    mode: Mode = Mode.TURNS,
    look: float = LOOK,
    tree: Tree = Tree(),  # noqa: B008 – it does not change
) -> Played:
    """Plays these programs, which all begin at once."""
    return _Play(programs, cycle, mode, look, tree).play(seconds)


class _Play:
    def __init__(self, programs: Sequence[Program], cycle: float, mode: Mode, look: float, tree: Tree) -> None:
        self.its = {each.name: _Running(each, each.name) for each in programs}  # by container
        self.turns = Turns(Rules(cycle), tree=tree)
        self.now, self.look = 0.0, look
        self.answers: list[tuple[float, int, Event]] = []
        self.agenda: list[tuple[float, int, str]] = []  # bursts, and "" for looks
        self.stops = self.serial = 0
        self.had: dict[str, list[float]] = {name: [] for name in self.its}
        self.due: dict[str, list[float]] = {name: [] for name in self.its}
        for gpu in sorted({gpu for each in programs for gpu in each.gpus}):
            self._tell(CardSeen(0.0, gpu, mode))
        for place, each in enumerate(programs):
            self._join(each, each.name)
            self._plan(place * each.every / len(programs) if each.every < inf else 0.0, each.name)
        self._plan(look, "")
        self._plan(GLANCE, GLANCES)

    def _plan(self, at: float, what: str) -> None:
        self.serial += 1
        heappush(self.agenda, (at, self.serial, what))

    def _join(self, each: Program, name: str) -> None:
        self._tell(Joined(self.now, name, each.gpus, each.weight, each.limit, each.priority, each.owner))

    def _tell(self, *events: Event) -> None:
        self.turns, effects = decide(self.turns, *events)
        for effect in effects:
            running = self.its[effect.container]
            if isinstance(effect, Stop):
                self.stops += 1
                running.flow = min(running.program.drain, running.work)
            else:
                self._answer(UNLOCK + LATE, Started(0.0, effect.container))

    def _answer(self, after: float, event: Event) -> None:
        self.serial += 1
        heappush(self.answers, (self.now + after, self.serial, event))

    # ---- the card ----

    def _speed(self, running: _Running) -> float:
        """The part of a card's time that it has now; on several cards, of the one where it has least."""
        if not running.runs:
            return 0.0
        crowds = [
            sum(each.runs and gpu in each.program.gpus for each in self.its.values()) for gpu in running.program.gpus
        ]
        return 1 / max(crowds)

    def _advance(self, to: float) -> None:
        seconds = to - self.now
        for running, speed in [(each, self._speed(each)) for each in self.its.values()]:
            part = seconds * speed
            running.had += part
            running.done += part * (1 - LOSS if speed < 1 else 1)
            running.work -= part
            running.open += seconds * (not running.locked)
            running.seen += part  # of what several compute at once, NVML tells each one's part
            if running.program.spins and not running.locked and speed > 0:
                running.stirred = to
            if running.flow is not None:
                running.flow = max(0.0, running.flow - part)
        self.now = to

    def _next(self) -> float:
        """When the card is done with something."""
        ends = [inf]
        for running in self.its.values():
            if speed := self._speed(running):
                ends.append(self.now + min(running.work, inf if running.flow is None else running.flow) / speed)
            elif running.flow is not None and not running.locked:
                ends.append(self.now)
        return min(ends)

    def _finish(self) -> None:
        """Bursts that have ended, and locks that have drained."""
        ended: list[_Running] = []
        for name, running in self.its.items():
            if running.asked is not None and running.work <= 1e-9:
                running.bursts.append(self.now - running.asked)
                running.work, running.asked = 0.0, None
                if running.program.lives < inf:
                    ended.append(running)
                    continue
            if running.flow is not None and (running.flow <= 1e-9 or running.work <= 0) and not running.locked:
                running.locked, running.flow = True, None
                self._answer(LOCK + LATE, Stopped(0.0, name))
        for running in ended:
            self._replace(running)

    def _replace(self, running: _Running) -> None:
        """Another container of the same person is launched when one has ended; what it computed last is still seen."""
        del self.its[running.id]
        self._tell(Left(self.now, running.id))
        for gpu in running.program.gpus:
            self._tell(Charged(self.now, running.program.owner, gpu, running.seen))
        self.serial += 1
        running.id, running.locked, running.flow = f"{running.program.name}.{self.serial}", False, None
        running.seen = running.open = 0.0
        self.its[running.id] = running
        self._join(running.program, running.id)
        self._plan(self.now, running.id)

    # ---- the clock ----

    def play(self, seconds: float) -> Played:
        while True:
            due = wake(self.turns)
            times = [
                self._next(),
                self.agenda[0][0],
                self.answers[0][0] if self.answers else inf,
                inf if due is None else max(self.now, due) + LATE,
            ]
            at = min(times)
            if at > seconds:
                break
            self._advance(at)
            self._finish()
            if self.answers and self.answers[0][0] <= at:
                event = heappop(self.answers)[2]
                if event.container not in self.its:  # type: ignore[union-attr]
                    continue
                if isinstance(event, Started):
                    self.its[event.container].locked, self.its[event.container].opened = False, at
                self._tell(type(event)(at, event.container))  # type: ignore[arg-type,call-arg,union-attr]
            elif self.agenda[0][0] <= at:
                self._due(heappop(self.agenda)[2])
            elif at == times[3]:
                self._tell(Ticked(at))
        return Played(
            self.had,
            self.due,
            {each.program.name: each.done for each in self.its.values()},
            {each.program.name: each.bursts for each in self.its.values() if each.bursts},
            self.stops,
        )

    def _due(self, what: str) -> None:
        if what == GLANCES:
            self._glance()
            return
        if what:
            running = self.its[what]
            program = running.program
            if wait := debt(self.turns, program.owner, program.gpus, self.now) if program.lives < inf else 0.0:
                self._plan(self.now + max(wait, LATE), what)
                return
            running.work, running.asked = max(0.0, running.work) + min(program.busy, program.lives), self.now
            if running.program.every < inf:
                self._plan(self.now + running.program.every, what)
            return
        events: list[Event] = [Ticked(self.now)]
        for name, running in self.its.items():
            if running.open < ENOUGH:
                continue
            if running.seen > 1e-9:
                part = running.seen / running.open
                events.append(Computes(self.now, name, running.program.gpus, part, running.open, running.seen))
            else:
                events.append(Rests(self.now, name))
            running.seen = running.open = 0.0
        self._tell(*events)
        for name, running in self.its.items():
            self.had[running.program.name].append(running.had)
            self.due[running.program.name].append(standing(self.turns, name, running.program.gpus[0]).due)
        self._plan(self.now + self.look, "")

    def _glance(self) -> None:
        """Who uses no processor seems to rest; if it has the turn, it is made sure."""
        for name, running in self.its.items():
            if not running.locked and self.now - max(running.stirred, running.opened) >= 2 * GLANCE - 1e-9:
                if standing(self.turns, name).has_turn:
                    self._tell(Yields(self.now, name))
                elif running.program.spins:
                    self._tell(Rests(self.now, name))
        self._plan(self.now + GLANCE, GLANCES)


# ---- what came of it --------------------------------------------------------------------------------------------


def shares(played: Played, begin: float = 0.0, end: float = inf, look: float = LOOK) -> dict[str, float]:
    """Each one's part of the card's time from `begin` to `end`, in seconds."""
    found = {}
    for name, had in played.had.items():
        last = min(len(had), round(end / look) if end < inf else len(had)) - 1
        first = round(begin / look) - 1
        found[name] = (had[last] - (had[first] if first >= 0 else 0.0)) / ((last - first) * look)
    return found


def farthest(played: Played, window: float = WINDOW, begin: float = WINDOW, look: float = LOOK) -> float:
    """How far the share of anybody was, in any window after `begin`, from what it was due in it: of 1."""
    length, first = round(window / look), round(begin / look)
    worst = 0.0
    for name, had in played.had.items():
        due = played.due[name]
        for start in range(first, len(had) - length):
            off = (had[start + length] - had[start]) - (due[start + length] - due[start])
            worst = max(worst, abs(off) / window)
    return worst
