"""Who computes: NVML's samples of each process, put beside the times in which its container was not locked.

NVML looks at a card a few times a second and names one process each time, whoever was there
(scheduler/gpus/sampling.py): one look says little, and five say who computes. So a container is judged by what it
computed of the time that was its own (was not locked), over a while that ends with the last sample. Of that, time
before a look that met it locked is left out: where looks and turns keep step, some are met in none of their turns for
long.

- one that rests is never locked. It computes once it has used more of the card than half of what would be its due (a
  quarter, at most), over three seconds, or much of three looks in a row: below that it takes nothing from the others
  that they would miss, and it is served at once. But the driver divides a full card among processes: there, half of
  what its processes would have of it, each as much as any other, is enough;
- one that computes rests once it leaves most of its own time unused: over a second of that, and one more for each other
  that was seen on the card while it was not locked, since a look that names another says nothing of this one;
- who has the turn and uses next to nothing of a processor seems to rest: whoever gives work to a card needs one for
  that. It is stopped to make sure, which takes as long as it has work there. Where it had some (one graph that takes
  long, waited for asleep), that is no sign for a while.

Where nobody's computing comes near to filling a card, nobody needs a turn there.

Looked at once a second; more often where one computes and another could, and most often where they take turns.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from scheduler import clock, proc
from scheduler.card import terms
from scheduler.card.gates import Gate, communicators
from scheduler.card.processes import REMEMBERED
from scheduler.card.terms import Terms
from scheduler.card.turns import TurnPlayer
from scheduler.core.cut import together
from scheduler.core.turns import Mode
from scheduler.core.turns.shares import divide_by_person
from scheduler.gpus import Gpus
from scheduler.gpus.sampling import Work
from scheduler.sessions.broker import Broker
from scheduler.sessions.live_containers import LiveContainer

SELDOM, OFTEN, ALWAYS = 1.0, 0.25, 0.1  # seconds between two looks
GLANCE = 0.025  # seconds between two looks at the processor time of who has the turn
OWN = 1.0  # seconds of its own that it is judged by, and as many again for each that computes beside it: five looks
MOMENT = 0.6  # seconds: three looks
FEW = 0.3  # seconds: of one that has had no more in all that is remembered
LONG = 3.0  # seconds; over these who computes in bursts does little
MUCH = 0.4  # of the time: who uses so much of the last moment need not be watched for longer
ASLEEP = 0.05  # seconds of its turn in which it used less than STIRS of a processor
STIRS = 0.01
UNSURE = 60.0  # seconds in which that is no sign, once it was wrong
LATE = 1.0  # seconds after which there would be a sample if anybody had computed
LONGEST = REMEMBERED - LATE
WAKES = 0.25  # of the time: who uses more may be noticed by the others, whatever is due to it
RESTS = 0.5  # of that again
LEAST = 0.02  # of the time: less is nothing
CHARGED = 1.5  # seconds: of what was before it was seen to compute, no more is counted
CROWD = 4  # processes of all on a card: of fewer, each is seen often enough
FULL = 0.8  # of a card, used by all together
ESCAPES = 0.1  # of the time, while it is locked: what is locked computes nothing
ESCAPED = 3  # samples in a row: a new process is locked a moment after it is seen
LEEWAY, TINY = 0.2, 1e-6  # seconds: by which a sample may be of an earlier time; that are none
MARK = 0.03  # seconds: the last of a sample, when NVML looked
ONE_LOOK = 0.3  # seconds: a sample of less is of one look, and tells nothing of who was locked at that moment
STATE = "state"  # a reason to take no turns: the container's own


@dataclass(slots=True)
class Seen:
    """What a container has computed on a card: spans of time (monotonic seconds) and the part of each."""

    spans: deque[tuple[float, float, float]] = field(default_factory=deque)
    computes: bool = False
    since: float = 0.0  # when that was seen
    asleep: float | None = None  # when its processor time said so, until that is looked into
    unsure: float = 0.0  # until then that is no sign
    reported: float = 0.0  # up to when what it computed was reported to the player
    part: float = 1.0  # of its own time, in which it computes; all of it until there is enough to judge by
    newborn: float = 0.0  # seconds that new processes computed while it was locked, not reported yet: they were not
    escapes: int = 0  # samples in a row of time in which it was locked, and computed all the same
    missed: deque[tuple[float, float]] = field(default_factory=deque)  # when a look met it locked; its own before
    beside: dict[str, float] = field(default_factory=dict)  # who was seen on the card while it was free, and when last

    def note(self, begin: float, end: float, part: float) -> None:
        self.spans.append((begin, end, min(1.0, part)))
        while self.spans[0][1] < end - REMEMBERED:
            self.spans.popleft()

    def missed_since(self, begin: float) -> float:
        """Seconds of its own that do not count: not all, or who has small turns would never be seen to rest."""
        return 2 / 3 * sum(own for end, own in self.missed if end > begin)

    def judged_by(self) -> float:
        """Seconds of its own: among several that compute at once, few looks name it."""
        return OWN * (1 + len(self.beside))

    def busy(self, begin: float, end: float) -> float:
        """Seconds."""
        total = 0.0
        for since, to, part in reversed(self.spans):
            if to <= begin:
                break
            total += part * max(0.0, min(end, to) - max(begin, since))
        return total


class Computing:
    """Tells the player who there is, who may take turns, and who computes.

    `escaped` is called with a container that computes although it is stopped.
    """

    def __init__(self, gpus: Gpus, broker: Broker, player: TurnPlayer, escaped: Callable[[str], None]) -> None:
        self._gpus, self._broker, self._player = gpus, broker, player
        self._seen: dict[tuple[str, str], Seen] = {}
        self._last: dict[str, float] = {}  # GPU → the end of its last sample
        self._named: dict[str, dict[int, float]] = {}  # GPU → processes that looks have named lately, and when last
        self._first: dict[int, float] = {}  # process → when a look met it first
        self._used: dict[str, tuple[float, float]] = {}  # who has the turn → when, and processor time by then
        self._escaped = escaped
        self._together: tuple[float, Mapping[str, str]] = -SELDOM, {}  # when that was looked at

    def pids(self, container: str) -> set[int]:
        """Host pids of all its processes that may compute."""
        live = self._broker.live_containers.get(container)
        return set() if live is None else live.pids

    def gates(self, container: str) -> Mapping[int, Gate]:
        live = self._broker.live_containers.get(container)
        return {} if live is None else live.gates

    async def run(self) -> None:
        while True:
            pause = self._pause()
            for _ in range(round(ALWAYS / GLANCE) if pause == ALWAYS else 0):
                await asyncio.sleep(GLANCE)
                self._glance()
            await asyncio.sleep(0 if pause == ALWAYS else pause)
            await self.look()

    def changed(self, live: LiveContainer) -> None:
        """Its weight, limit or priority; or that it may take turns, or may not."""
        self.meet()

    async def look(self) -> None:
        self.meet()
        if self._player.why_not:
            return
        work = await self._gpus.work(self._gpus.cards)
        ahead = clock.wall() - self._player.now()
        now = self._player.now()
        owners = self._owners(now)
        self._first = {pid: self._first.get(pid, now) for pid in owners}
        for gpu, done in work.items():
            self._note(gpu, done, owners, ahead)
        computing: dict[str, list[str]] = {live.id: [] for live in self._present()}
        for gpu in self._gpus.cards:
            for id_ in self._judge(gpu):
                computing[id_].append(gpu)
        self._player.see({id_: self._measured(id_, gpus) for id_, gpus in computing.items()})
        self._charge_ended()

    def _owners(self, now: float) -> dict[int, str]:
        """Whose work it is. A pid that has ended may be another container's by now."""
        live_containers = self._broker.live_containers.values()
        lately = {pid: live.id for live in (*self._broker.ended, *live_containers) for pid in live.pids_lately(now)}
        return lately | {pid: live.id for live in live_containers for pid in live.pids}

    def _measured(self, container: str, gpus: list[str]) -> terms.Seen:
        """What it computed of its own time that is new, and the part in which it does by all that it is judged by.

        On the card where that is most.
        """
        its = [(self._seen[container, gpu], self._last[gpu]) for gpu in gpus]
        for seen, _ in its:  # one that wakes is charged what it was seen by, and no more
            seen.reported = max(seen.reported, seen.since - CHARGED)
        own = min((self._player.free_in(container, seen.reported, end) for seen, end in its), default=0.0)
        had = max(
            (
                self._wanted(container, gpu, seen.busy(seen.reported, end))
                for gpu, (seen, end) in zip(gpus, its, strict=True)
            ),
            default=0.0,
        )
        for seen, end in its:
            seen.reported = max(seen.reported, end)
            if (part := self._part(container, seen, end, seen.judged_by())) is not None:
                seen.part = part
        part = max((seen.part for seen, _ in its), default=1.0)
        beside = max((seen.newborn for seen, _ in its), default=0.0)
        for seen, _ in its:
            seen.newborn = 0.0
        return terms.Seen(tuple(gpus), min(1.0, part), max(0.0, own), min(had, own), beside)

    def _wanted(self, container: str, gpu: str, had: float) -> float:
        """Seconds of the card that it would have had, if processes of others had not been on it at the same time.

        Who is beside the queue is charged by these, or it would stay there, crowded out, and never have its share.
        """
        live = self._broker.live_containers.get(container)
        taker = self._player.turns.takers.get(container)
        if live is None or taker is None or not taker.beside:
            return had
        return had / max(self._crowded(gpu, live), TINY)

    def _charge_ended(self) -> None:
        """Their owners, with what containers have computed that ended before they were seen to."""
        for live in self._broker.ended:
            for gpu in live.quota:
                seen = self._seen.get((live.id, gpu))
                if seen is None or seen.computes:  # who takes turns is charged by the clock
                    continue
                begin, seen.reported = max(seen.reported, self._last[gpu] - CHARGED), self._last[gpu]
                if had := seen.busy(begin, seen.reported) + seen.newborn:
                    self._player.charge(live.owner, gpu, had)
                seen.newborn = 0.0

    def _present(self) -> list[LiveContainer]:
        return [live for live in self._broker.live_containers.values() if not live.finished]

    def meet(self) -> None:
        """The player knows all that there are, and who may take turns."""
        live_containers = self._present()
        self._player.divide(self._broker.state.people.tree)
        self._player.join({live.id: self._terms(live) for live in live_containers}, self._groups(live_containers))
        for live in live_containers:
            self._player.bar(live.id, STATE, _takes_no_turns(live))

    def _terms(self, live: LiveContainer) -> Terms:
        known = self._broker.state.containers.get(live.id)
        across = known is not None and known.across
        return Terms(
            tuple(live.quota), live.compute_weight, live.compute_limit, live.priority, owner=live.owner, across=across
        )

    def _groups(self, live_containers: Iterable[LiveContainer]) -> Mapping[str, str]:
        """Which share communicators. What a program says of itself joins it to others of its owner only."""
        looked, groups = self._together
        if (now := self._player.now()) - looked >= SELDOM:
            its = {live.id: {(live.owner, each) for each in communicators(live.gates)} for live in live_containers}
            self._together = now, (groups := together(its))
        return groups

    def _note(self, gpu: str, done: Work | None, owners: Mapping[int, str], ahead: float) -> None:
        """`ahead`: of the monotonic clock, seconds."""
        last = self._last.setdefault(gpu, 0.0)
        if done is not None and done.until - ahead > last:
            begin, end = max(last, done.since - ahead), done.until - ahead
            named = self._named.get(gpu, {}) | dict.fromkeys(done.parts, end)
            self._named[gpu] = {pid: at for pid, at in named.items() if at > end - LONG}
            parts: dict[str, float] = {}
            born: dict[str, float] = {}
            for pid, part in done.parts.items():
                if owner := owners.get(pid):
                    parts[owner] = parts.get(owner, 0.0) + part
                    if self._first.get(pid, end) > begin - LEEWAY:
                        born[owner] = born.get(owner, 0.0) + part
            for owner, part in parts.items():
                self._seen.setdefault((owner, gpu), Seen()).note(begin, end, part)
            for owner, part in born.items():
                computed = min(1.0, part) * (end - begin)
                self._seen[owner, gpu].newborn += max(0.0, computed - self._player.free_in(owner, begin, end))
            for (owner, where), seen in self._seen.items():
                if where != gpu:
                    continue
                if self._player.free_in(owner, begin - LEEWAY, end) < TINY:
                    self._look_for_escape(owner, seen, parts.get(owner, 0.0) - born.get(owner, 0.0))
                if self._player.free_in(owner, end - MARK, end) > MARK - TINY:
                    seen.beside |= dict.fromkeys(parts.keys() - {owner}, end)
                elif end - begin < ONE_LOOK:
                    seen.missed.append((end, self._player.free_in(owner, begin, end)))
                while seen.missed and seen.missed[0][0] < end - REMEMBERED:
                    seen.missed.popleft()
                seen.beside = {other: at for other, at in seen.beside.items() if at > end - LONG}
            self._last[gpu] = end
        known = self._broker.live_containers.keys() | {live.id for live in self._broker.ended}
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in known}

    def _look_for_escape(self, owner: str, seen: Seen, part: float) -> None:
        """All of it was locked. But any process of a container may let another go: the driver asks for no right."""
        seen.escapes = seen.escapes + 1 if part >= ESCAPES else 0
        if seen.escapes == ESCAPED:
            seen.escapes = 0
            self._escaped(owner)
            self._player.hang(owner, "It computed while it was stopped: one of its processes resumes it.")

    def _glance(self) -> None:
        """Whether who has a turn makes use of it."""
        now, used = self._player.now(), {}
        for live in self._present():
            its = [seen for (id_, _), seen in self._seen.items() if id_ == live.id and seen.computes]
            if not its or not self._player.has_turn(live.id) or any(now < seen.unsure for seen in its):
                continue
            used[live.id] = now, sum(map(proc.processor_time, self.pids(live.id)))
            at, before = self._used.get(live.id, used[live.id])
            if used[live.id][1] - before >= STIRS * max(now - at, ASLEEP):
                continue
            used[live.id] = at, before
            if now - at >= ASLEEP:
                self._player.yields(live.id)
                for seen in its:
                    seen.asleep = now
                del used[live.id]
        self._used = used

    def _judge(self, gpu: str) -> list[str]:
        """Who of the card's containers computes there."""
        its = {live: seen for live in self._present() if (seen := self._seen.get((live.id, gpu)))}
        end = max(self._last[gpu], self._player.now() - LATE)
        lately = {live: seen.busy(max(end - LONG, seen.since), end) / LONG for live, seen in its.items()}
        moment = {live: self._part(live.id, seen, end, MOMENT) for live, seen in its.items()}
        full = sum(part for part in moment.values() if part is not None) >= FULL
        before = {live for live, seen in its.items() if seen.computes}
        there = before | {live for live, part in lately.items() if part >= LEAST}
        for live, seen in its.items():
            weights = {each.id: (each.owner, each.compute_weight) for each in there | {live}}
            due = divide_by_person(self._broker.state.people.tree, weights, {})[live.id]
            least = min(WAKES, due / 2, (live.compute_limit or 100) / 200)
            needed = full or live.compute_limit is not None or not before - {live}
            self._check(live, seen)
            if seen.computes:
                part = self._part(live.id, seen, end, seen.judged_by())
                seen.computes = part is None or part >= RESTS * least
            elif needed:
                part, starts = moment[live], min(least, self._crowded(gpu, live) / 2) if full else least
                seen.computes = lately[live] >= starts or (part is not None and part >= max(MUCH, least))
            if seen.computes != (live in before):
                seen.since, seen.part = end, 1.0
        return [live.id for live, seen in its.items() if seen.computes]

    def _crowded(self, gpu: str, live: LiveContainer) -> float:
        """The part of the card that it has at most, as all processes there have as much; 1 where few are."""
        named = self._named.get(gpu, {})
        its = len(named.keys() & self.pids(live.id))
        return its / len(named) if its and len(named) > CROWD else 1.0

    def _part(self, container: str, seen: Seen, end: float, its_own: float) -> float | None:
        """Of the last `its_own` seconds of its own, the part in which it computed; None while it has had less.

        Or of all that are remembered, if there are a few at least: who has small turns does not have more.
        """
        window = its_own
        while (own := self._player.free_in(container, begin := end - window, end) - seen.missed_since(begin)) < its_own:
            if window == LONGEST:
                break
            window = min(1.25 * window, LONGEST)
        return seen.busy(begin, end) / own if own >= min(its_own, FEW) and begin >= seen.since else None

    def _check(self, live: LiveContainer, seen: Seen) -> None:
        """Was it right that it slept, and rests? The core has had it stopped to see that."""
        if seen.asleep is not None and (rests := self._player.rests(live.id)) is not None:
            now, seen.asleep = self._player.now(), None
            if rests:
                seen.computes, seen.since = False, now
            else:
                seen.unsure = now + UNSURE

    def _pause(self) -> float:
        """Seconds until the next look."""
        most = 0
        for gpu in self._gpus.cards:
            if self._player.mode(gpu) is Mode.SHARED:
                continue
            there = [live for live in self._present() if gpu in live.quota and live.sessions]
            computing = [t for t in there if (seen := self._seen.get((t.id, gpu))) and seen.computes]
            if len(computing) > 1 or any(live.compute_limit is not None for live in computing):
                most = 2
            elif computing and len(there) > 1:
                most = max(most, 1)
            if most:
                self._player.prepare(len(there))
        return (SELDOM, OFTEN, ALWAYS)[most]


def _takes_no_turns(live: LiveContainer) -> bool:
    """Not one that is suspended: a call of it waits, and other threads and processes of it may compute all the same.
    Nor one that is to end, but for a while (containers/terminator.py): its grace may be an hour."""
    return bool(live.paused or live.swap or live.started_at is None)
