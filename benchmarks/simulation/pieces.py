"""A week of launches of whole and half cards on one host, with and without moves between its cards.

Each launch is placed as a scheduler places it, takes its whole quota at once, and computes until it is done; what is
moved stands still meanwhile. Transfers take what was measured (lab.py). Waits are from the launch to the memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from statistics import fmean

from benchmarks.simulation.programs import GIB, SPEEDS, takes
from scheduler.containers.placement import choose
from scheduler.core.arbiter import handle
from scheduler.core.effects import Granted, Relocate, Restore, TakeBack
from scheduler.core.events import (
    CameBack,
    ContainerAdded,
    ContainerEnded,
    Event,
    GpuSeen,
    Needed,
    PreemptionChanged,
    Returned,
    SessionOpened,
    SwappedOut,
    Ticked,
)
from scheduler.core.invariants import violations
from scheduler.core.state import Mode, Preemption, State

CARD = 80 * GIB
CARDS = 4
WEEK = 7 * 86400.0
TICK = 30.0  # seconds
CONTEXT = GIB // 2  # what of a card is nobody's


@dataclass(frozen=True, slots=True)
class Job:
    arrives: float
    size: int
    seconds: float


@dataclass(slots=True)
class Week:
    """`waits`: seconds of each launch. `moving`: card-seconds that moves took. `anew`: of who had nothing yet."""

    waits: list[float] = field(default_factory=list)
    moves: int = 0
    anew: int = 0
    moving: float = 0.0
    until: float = 0.0

    @property
    def moving_share(self) -> float:
        return self.moving / (CARDS * self.until)


@dataclass(slots=True)
class _Run:
    job: Job
    left: float
    began: float = -1.0  # since when it computes; negative: it does not
    version: int = 0
    moved: bool = False
    move_began: float = 0.0


def jobs(seed: int, load: float = 0.8, whole: float = 0.35) -> list[Job]:
    """A week of them: a card, or a half, for some minutes to a day; `load`: of the cards' time that they would fill."""
    random, made, at = Random(seed), list[Job](), 0.0
    mean = 3 * 3600.0
    while at < WEEK:
        size = CARD - CONTEXT if random.random() < whole else (CARD - CONTEXT) // 2
        seconds = min(86400.0, max(300.0, random.lognormvariate(0.0, 1.0) * mean / 1.65))
        made.append(Job(at, size, seconds))
        at += random.expovariate(CARDS * load / (mean * (1 + whole) / 2))
    return made


def play(work: Iterable[Job], move_share: float, *, check: bool = False) -> Week:
    return _Host(list(work), move_share, check).play()


class _Host:
    def __init__(self, work: list[Job], move_share: float, check: bool) -> None:
        self.week, self.runs, self.state, self.check = Week(), [_Run(job, job.seconds) for job in work], State(), check
        self.agenda: list[tuple[float, int, str, int, int]] = []
        self.count, self.now, self.live = 0, 0.0, 0
        self.leaving: Relocate | None = None  # one at a time
        rule = Preemption(mode=Mode.OFF, move_share=move_share, **SPEEDS)
        for index in range(CARDS):
            self._tell(GpuSeen(0.0, f"g{index}", CARD - CONTEXT))
        self._tell(PreemptionChanged(0.0, rule))
        for number, run in enumerate(self.runs):
            self._at(run.job.arrives, "arrive", number)
        self._at(TICK, "tick", -1)

    def play(self) -> Week:
        while self.agenda:
            self.now, _, what, number, version = heappop(self.agenda)
            if what == "tick":
                self._tell(Ticked(self.now))
                if self.live or self.now < WEEK:
                    self._at(self.now + TICK, "tick", -1)
            elif version == self.runs[number].version:
                getattr(self, f"_{what}")(number)
        self.week.until = self.now
        return self.week

    def _at(self, when: float, what: str, number: int) -> None:
        self.count += 1
        version = self.runs[number].version if number >= 0 else 0
        heappush(self.agenda, (when, self.count, what, number, version))

    def _tell(self, *events: Event) -> None:
        for event in events:
            self.state, effects = handle(self.state, event)
            if self.check:
                assert violations(self.state) == []
            for effect in effects:
                match effect:
                    case TakeBack(gpu):
                        self._tell(Returned(self.now, gpu, {}, all=True))
                    case Granted() if effect.serial > 0:
                        run = self.runs[effect.session]
                        self.week.waits.append(self.now - run.job.arrives)
                        self._go_on(effect.session)
                    case Relocate():
                        self._leave(int(effect.container), effect)
                    case Restore(container):
                        size, first = self.runs[int(container)].job.size, False
                        held = size if self.runs[int(container)].left < self.runs[int(container)].job.seconds else 0
                        self._at(
                            self.now + (takes(held, back=True, first=first) if held else 1.0), "back", int(container)
                        )

    # ---- what happens ----

    def _arrive(self, number: int) -> None:
        job, name = self.runs[number].job, str(number)
        (gpu,) = choose(self.state, 1, job.size)
        self.live += 1
        self._tell(
            ContainerAdded(self.now, name, {gpu: job.size}, owner=f"p{number % 7}"),
            SessionOpened(self.now, number, name),
            Needed(self.now, number, 1, gpu, job.size, collected=True),
        )

    def _go_on(self, number: int) -> None:
        run = self.runs[number]
        run.began, run.version = self.now, run.version + 1
        self._at(self.now + run.left, "end", number)

    def _end(self, number: int) -> None:
        self.live -= 1
        self._tell(ContainerEnded(self.now, str(number)))

    def _leave(self, number: int, effect: Relocate) -> None:
        run = self.runs[number]
        run.version += 1
        held = run.job.size if run.began >= 0 else 0
        if run.began >= 0:
            run.left -= self.now - run.began
            run.began = -1.0
        run.move_began = self.now
        if held:
            self.week.moves += 1
        else:
            self.week.anew += 1
        self.leaving = effect
        self._at(self.now + (takes(held, back=False, first=not run.moved) if held else 1.0), "out", number)
        run.moved = run.moved or held > 0

    def _out(self, number: int) -> None:
        assert self.leaving is not None
        self._tell(SwappedOut(self.now, str(number), {self.leaving.old: self.leaving.new}))

    def _back(self, number: int) -> None:
        run = self.runs[number]
        if run.left < run.job.seconds:  # it has begun
            self.week.moving += self.now - run.move_began
            self._go_on(number)
        self._tell(CameBack(self.now, str(number)))


def tables(seeds: int) -> str:
    """The mean of so many weeks: minutes that a launch waits, with the moves and without."""
    rows = ["whole cards  waits without  waits with  ratio   moves  placed anew  of the cards' time"]
    for whole in (0.2, 0.35, 0.5):
        work = [jobs(seed, whole=whole) for seed in range(seeds)]
        without, with_ = [play(each, 0.0) for each in work], [play(each, 0.01) for each in work]
        before, after = (fmean(fmean(week.waits) for week in weeks) / 60 for weeks in (without, with_))
        moves, anew = fmean(week.moves for week in with_), fmean(week.anew for week in with_)
        share = max(week.moving_share for week in with_)
        rows.append(
            f"{whole:11.0%}  {before:9.0f} min  {after:6.0f} min  {after / before:5.2f}  {moves:6.0f}  {anew:11.0f}"
            f"  {share:18.3%}"
        )
    return "\n".join(rows)
