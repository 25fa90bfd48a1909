"""A host whose holders give way, on a simulated clock: the arbiter, programs that compute now and then, and transfers.

Transfers take what was measured on an H100 under our shim (PyTorch, 4, 16 and 40 GiB), one at a time on a host. A
program that is stopped, or that wants to compute and whose memory is out, is *stalled* until its memory is back.
Where turns are simulated, those that compute on a card divide its time; else each computes as if it were alone.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from math import inf

from benchmarks.simulation.programs import GIB, Day, Program, Stall, sums, takes
from scheduler.core.arbiter import handle
from scheduler.core.effects import Effect, Granted, Preempt, Restore, TakeBack
from scheduler.core.events import (
    ActivityDetected,
    CameBack,
    ContainerAdded,
    ContainerEnded,
    Event,
    GpuSeen,
    Idle,
    Needed,
    PeopleChanged,
    PreemptionChanged,
    Returned,
    SessionOpened,
    SwappedOut,
    Ticked,
)
from scheduler.core.people.tree import Tree
from scheduler.core.state import Mode, Preemption, State
from scheduler.core.turns.shares import divide_by_person

HORIZON = 14 * 86400.0  # seconds, by which everything has ended
SOON, LATER = 1.0, 20.0  # seconds to a tick after something has happened, and after another tick


class Turns(StrEnum):
    """Among whom the time of a card is divided. `NONE`: each computes as if it were alone."""

    NONE = "none"
    CONTAINERS = "containers"
    PEOPLE = "people"


@dataclass(slots=True)
class _Run:
    """`left`: of the cell, in seconds on a card of its own. `speed`: the part of the card that it has. `version`: of
    its timer; an older one means nothing. `stopped`: in a cell."""

    program: Program
    gpu: str
    place: int
    cell: int = 0
    left: float = 0.0
    computing: bool = False
    began: float = 0.0
    speed: float = 1.0
    version: int = 0
    loaded: bool = False
    moved: bool = False
    stopped: bool = False
    stalled: float | None = None
    ahead: int = 0
    ended: bool = False


def play(
    programs: Sequence[Program],
    cards: Sequence[int],
    rule: Preemption,
    turns: Turns = Turns.NONE,
    tree: Tree | None = None,
    until: float = inf,
    later: float = LATER,
    counts: float = 0.0,
) -> Day:
    """`tree`: by which what is due is counted; the arbiter gets it where turns are by person. `until`: when it is
    broken off. `later`: seconds from one tick to the next while nothing happens. `counts`: from when on what people
    have is counted."""
    return _Lab(programs, cards, rule, turns, tree or Tree(), until, later, counts).play()


class _Lab:
    """Session i is the process of program i, its container is its place in the list."""

    def __init__(
        self,
        programs: Sequence[Program],
        cards: Sequence[int],
        rule: Preemption,
        turns: Turns,
        tree: Tree,
        until: float,
        later: float,
        counts: float,
    ) -> None:
        self.day = Day()
        self.programs = list(programs)
        self.turns, self.tree, self.until, self.later, self.counts = turns, tree, until, later, counts
        self.runs: dict[int, _Run] = {}
        self.live: dict[int, _Run] = {}  # those of them that have not ended
        self.headroom: dict[int, int] = {}
        self.transfers: deque[tuple[int, bool]] = deque()  # (program, back); the first is under way
        self.state = State()
        self.events: list[Event] = []
        self.now, self.ticking = 0.0, inf
        self.agenda: list[tuple[float, int, str, int, int]] = []  # (time, number, what, program, version)
        self.count = 0
        self._tell(*(GpuSeen(0.0, f"g{i}", size) for i, size in enumerate(cards)), PreemptionChanged(0.0, rule))
        if turns is Turns.PEOPLE:
            self._tell(PeopleChanged(0.0, tree))
        for place, program in enumerate(programs):
            self._at(program.arrives, "arrive", place)

    def play(self) -> Day:
        self._handle()
        while self.agenda and self.agenda[0][0] <= self.until:
            if self.turns is not Turns.NONE and self.now >= self.counts:
                self._count(self.agenda[0][0] - self.now)
            self.now = self.agenda[0][0]
            if self.now > HORIZON:
                raise RuntimeError(f"nobody is served any more: {self.state.waiting}")
            happened = False
            while self.agenda and self.agenda[0][0] == self.now:
                happened |= self._happen()
            self._handle()
            self._tick_in(SOON if happened else self.later)
        for run in self.live.values():
            if run.cell:
                left = run.left - (self.now - run.began) * run.speed if run.computing else run.left
                self.day.begun += 1 - left / run.program.cells[run.cell - 1][1]
        return self.day

    def _count(self, seconds: float) -> None:
        """What each owner has in this time, and what is due to it, on cards that somebody waits for."""
        for gpu, meter in self.state.people.meters.items() if seconds else ():
            there = {name: entry.held for name, entry in meter.people.items() if entry.there} if meter.calls else {}
            parts, held, computed = self.tree.divide(there), sum(there.values()), sums()
            for run in self._computing(gpu) if there else ():
                computed[run.program.owner] += run.speed
            wants = Counter[str]()
            for run in self.live.values() if there else ():
                wants[run.program.owner] += run.program.size if run.gpu == gpu else 0
            most = {name: size / held for name, size in wants.items() if size and held}
            for name, part in divide_by_person(self.tree, {name: (name, 1) for name in most}, most).items():
                self.day.wanted_due[name] += part * held * seconds
            for name, its in there.items():
                self.day.held[name] += its * seconds
                self.day.held_due[name] += held * parts[name] * seconds
                self.day.computed[name] += computed[name] * seconds
                self.day.computed_due[name] += sum(computed.values()) * parts[name] * seconds
            for side, least in self._least(gpu, there, parts).items():
                self.day.least[side] += least * seconds

    def _least(self, gpu: str, there: Mapping[str, int], parts: Mapping[str, float]) -> dict[str, float]:
        """What each group, and person without one, holds, less the most of what it has above its due that waiting
        containers of others with less than theirs would fit into, together with what is free. So no rule could have
        taken more of it at this moment without leaving it idle."""
        has, due, held = Counter[str](), sums(), sum(there.values())
        sides = {name: self.tree.parent(name) or name for name in there}
        for name, side in sides.items():
            has[side] += there[name]
            due[side] += held * parts[name]
        calls = [(sides[self.runs[r.session].program.owner], r.bytes) for r in self.state.waiting if r.gpu == gpu]
        free, least = max(0, self.state.gpus[gpu].capacity - held), dict[str, float]()
        for side, its in has.items():
            room, fits = round(free + max(0.0, its - due[side])) // GIB, 1  # bit n: a sum of n GiB
            for other, size in calls if its > due[side] else ():
                if other != side and has[other] < due[other]:
                    fits |= fits << size // GIB
            most = (fits & (2 << room) - 1).bit_length() - 1
            least[side] = its - max(0, most * GIB - free)
        return least

    def _happen(self) -> bool:
        """Takes the next one off the agenda; returns whether it was more than a tick."""
        _, _, what, place, version = heappop(self.agenda)
        if what == "tick":
            if self.now == self.ticking:
                self.ticking = inf
                self._tell(Ticked(self.now))
            return False
        run = self.runs.get(place)
        if run is None or not (run.ended or (what == "rings" and version != run.version)):
            getattr(self, f"_{what}")(place)
        return True

    def _at(self, time: float, what: str, place: int = -1, version: int = 0) -> None:
        self.count += 1
        heappush(self.agenda, (time, self.count, what, place, version))

    def _tick_in(self, wait: float) -> None:
        """While somebody waits, if anything can follow from that by itself."""
        if self.state.waiting and self.state.preemption.mode is not Mode.OFF and self.agenda:
            self.ticking = min(self.ticking, self.now + wait)
            self._at(self.ticking, "tick")

    # ---- the arbiter ----

    def _tell(self, *events: Event) -> None:
        """All that happens at a moment is handed in together."""
        self.events += events

    def _handle(self) -> None:
        while self.events:
            events, self.events = self.events, []
            self.state, effects = handle(self.state, *events)
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Granted() if effect.serial >= 0:
                self.headroom[effect.session] = effect.extra
                run = self.runs[effect.session]
                run.loaded = True
                self._go_on(effect.session)
                self._pause(effect.session)
                self._tell(Idle(self.now, effect.container, self.now))
            case TakeBack():
                mine = [key for key, run in self.live.items() if run.gpu == effect.gpu]
                taken = {key: idle for key in mine if (idle := self.headroom.pop(key, 0))}
                self._tell(Returned(self.now, effect.gpu, taken, all=True))
            case Preempt():
                self._move(int(effect.container), back=False)
            case Restore():
                self._move(int(effect.container), back=True)

    # ---- programs ----

    def _arrive(self, place: int) -> None:
        program = self.programs[place]
        promised = {
            gpu: sum(self.state.containers[name].quota[gpu] for name in card.members) - card.capacity
            for gpu, card in self.state.gpus.items()
            if card.capacity >= program.size
        }
        gpu = min(promised, key=promised.__getitem__)
        self.runs[place] = self.live[place] = _Run(program, gpu, place)
        self._stall(place)
        if program.until < inf:
            self._at(program.until, "close", place)
        self._tell(
            ContainerAdded(self.now, str(place), {gpu: program.size}, owner=program.owner),
            SessionOpened(self.now, place, str(place)),
            Needed(self.now, place, 0, gpu, program.size),
        )

    def _pause(self, place: int) -> None:
        """Begins the pause before the next cell; without one left, or at closing time, it ends."""
        run = self.runs[place]
        self._stands_still(run)
        if run.cell == len(run.program.cells) or self.now >= run.program.until:
            self._end(place)
            return
        pause, run.left = run.program.cells[run.cell]
        run.cell += 1
        self._timer(place, pause)

    def _timer(self, place: int, wait: float) -> None:
        run = self.runs[place]
        run.version += 1
        self._at(self.now + wait, "rings", place, run.version)

    def _rings(self, place: int) -> None:
        run = self.runs[place]
        if run.computing:
            self._pause(place)
            if not run.ended:
                self._tell(Idle(self.now, str(place), self.now))
        elif run.loaded:
            self._cell_begins(place)
        else:
            self._stall(place)
            self._tell(ActivityDetected(self.now, str(place)))

    def _cell_begins(self, place: int, stalled: float = 0.0) -> None:
        if self.runs[place].cell > 1:
            self.day.cells.append(stalled)
        self._tell(ActivityDetected(self.now, str(place)))
        self._compute(place)

    def _compute(self, place: int) -> None:
        run = self.runs[place]
        run.computing, run.began = True, self.now
        self._timer(place, run.left)
        self._divide(run.gpu)

    def _stands_still(self, run: _Run) -> None:
        if run.computing:
            run.computing, run.left = False, run.left - (self.now - run.began) * run.speed
            self._divide(run.gpu)

    def _computing(self, gpu: str) -> list[_Run]:
        return [run for run in self.live.values() if run.computing and run.gpu == gpu]

    def _divide(self, gpu: str) -> None:
        """Who computes on a card, or stops, changes what the others have of it."""
        if self.turns is Turns.NONE:
            return
        runs = self._computing(gpu)
        each = Counter(run.program.owner for run in runs)
        parts = self.tree.divide(each)
        for run in runs:
            run.left -= (self.now - run.began) * run.speed
            owner = run.program.owner
            run.speed = parts[owner] / each[owner] if self.turns is Turns.PEOPLE else 1 / len(runs)
            run.began = self.now
            self._timer(run.place, run.left / run.speed)

    def _close(self, place: int) -> None:
        run = self.runs[place]
        if not run.computing and not run.stopped:
            self._end(place)

    def _end(self, place: int) -> None:
        if self.runs[place].stalled is not None:
            self._go_on(place)
        run = self.runs[place]
        run.ended = True
        self._stands_still(run)
        del self.live[place]
        self.day.finish = self.now
        self.day.ended[run.program.owner] += 1
        if run.program.then:
            self.programs.append(run.program.then(self.now))
            self._at(self.now, "arrive", len(self.programs) - 1)
        self.headroom.pop(place, None)
        self._tell(ContainerEnded(self.now, str(place)))

    def _stall(self, place: int) -> None:
        run = self.runs[place]
        run.stalled, run.ahead = self.now, len(self.state.waiting)

    def _go_on(self, place: int) -> float:
        run = self.runs[place]
        assert run.stalled is not None
        stall = Stall(place, run.stalled, self.now - run.stalled, run.ahead, not run.cell)
        self.day.stalls.append(stall)
        if stall.start:
            self.day.starts.setdefault(run.program.owner, []).append(stall.seconds)
        run.stalled = None
        return stall.seconds

    # ---- transfers ----

    def _move(self, place: int, *, back: bool) -> None:
        self.transfers.append((place, back))
        if len(self.transfers) == 1:
            self._begin()

    def _begin(self) -> None:
        place, back = self.transfers[0]
        run = self.runs[place]
        if not back:
            run.loaded = False
            if run.computing:
                self._stands_still(run)
                run.version += 1
                run.stopped = True
                self._stall(place)
        lasts = takes(run.program.size, back=back, first=not run.moved)
        self.day.moving += lasts
        self.day.outs += not back
        self._at(self.now + lasts, "moved")

    def _moved(self, _: int) -> None:
        place, back = self.transfers.popleft()
        if self.transfers:
            self._begin()
        run = self.runs[place]
        if run.ended:
            return
        if not back:
            run.ahead = len(self.state.waiting)
            self._tell(SwappedOut(self.now, str(place)))
            return
        run.loaded = run.moved = True
        self._tell(CameBack(self.now, str(place)))
        if run.stalled is None:  # it was wanted back by chance
            self._tell(Idle(self.now, str(place), self.now))
            return
        stalled = self._go_on(place)
        if run.stopped:
            run.stopped = False
            self._compute(place)
        else:
            self._cell_begins(place, stalled)
