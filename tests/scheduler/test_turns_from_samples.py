"""Shares come out of what NVML tells: who computes is found in its samples by the real code, on a clock of the test's.

The card is a model: whoever is not locked has it together with the others, and a lock waits for what was given.
"""

import asyncio
import random
import selectors
import time
from collections.abc import Callable, Coroutine
from math import inf
from types import SimpleNamespace
from typing import Any, TypeVar

import pynvml
import pytest

from scheduler import proc
from scheduler.card.turns import TurnPlayer
from scheduler.core.state import State
from scheduler.core.turns import Mode, Rules
from scheduler.gpus import Gpus
from scheduler.monitors.turns import computing
from scheduler.sessions.live_containers import LiveContainer
from tests.support.nvml import Nvml

GPU = "GPU-0"
TICK, LOOK = 0.004, 0.2  # seconds: between two steps of the card, and between two looks of NVML's
SETTLES, MEASURED = 10, 20  # seconds
GATELESS = SimpleNamespace(gate=SimpleNamespace(entries=list))  # of a process that is no rank
T = TypeVar("T")


class Skipping(selectors.SelectSelector):
    """Nobody waits: the time that there is nothing to do for is over at once."""

    now = 1e6

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


class Watched(Gpus):
    """One card; asked without a thread, which would take real time."""

    def __init__(self) -> None:
        super().__init__()
        self.cards = self._handles = dict.fromkeys([GPU])

    async def _ask(self, call: Any, *arguments: object) -> Any:
        return call(*arguments)


class CardModel:
    """The card, who computes on it without end (but `idle`), the helper that locks them, and the guardian."""

    lost = None

    def __init__(self, processes: int, drain: float) -> None:
        self.had = dict.fromkeys(range(1, processes + 1), 0.0)  # pid → seconds
        self.by_turns = 0.0  # seconds in which one had it to itself
        self.locked_now: set[int] = set()
        self.idle: set[int] = set()
        self.ended: set[int] = set()
        self.drain = drain
        self.nvml = Nvml()
        self._chance = random.Random(5)

    async def run(self) -> None:
        before, look = time.time(), time.time()
        while True:
            await asyncio.sleep(TICK)
            now, there = time.time(), self.there()
            for pid in there:
                self.had[pid] += (now - before) / len(there)
            self.by_turns += now - before if len(there) == 1 else 0.0
            before = now
            if now >= look:
                self.nvml.now, look = int(now * 1e6), look + LOOK
                self.nvml.seen[self.nvml.now] = self._chance.choice(there) if there else 0

    def there(self) -> list[int]:
        return [pid for pid in self.had if pid not in self.locked_now | self.idle | self.ended]

    def replace(self, pid: int) -> int:
        """The process ends and another one begins, which is not locked. Its pid."""
        self.ended.add(pid)
        self.locked_now.discard(pid)
        return self.begin()

    def begin(self) -> int:
        new = max(self.had) + 1
        self.had[new] = 0.0
        return new

    async def why_not(self) -> str:
        return ""

    async def stop(self, pid: int, within: float) -> None:
        await asyncio.sleep(0.01 if pid in self.idle else self.drain * len(self.there()))
        self.locked_now.add(pid)

    async def unlock(self, pid: int, within: float) -> None:
        self.locked_now.discard(pid)

    async def alone(self) -> None: ...

    async def prepare(self, workers: int) -> None: ...

    async def watch(self, pids: set[int]) -> None: ...

    def locked(self, pids: set[int]) -> None: ...

    def release(self, pids: set[int]) -> None: ...

    def forget(self, pid: int) -> None: ...

    def report_loss(self, lost: Callable[[str], None]) -> None: ...


class HalfIdle(CardModel):
    """Each is as fast as its own processor lets it be, as small trainings are, and leaves half of the card idle."""

    async def run(self) -> None:
        before, look = time.time(), time.time()
        while True:
            await asyncio.sleep(TICK)
            now, there = time.time(), self.there()
            for pid in there:
                self.had[pid] += now - before
            before = now
            if now >= look:
                self.nvml.now, look = int(now * 1e6), look + LOOK
                at_work = [pid for pid in there if self._chance.random() < 0.45]
                self.nvml.seen[self.nvml.now] = self._chance.choice(at_work) if at_work else 0


class Scene:
    """A card in turns, and who takes them by these weights; pids count from 1."""

    def __init__(self, weights: list[int], drain: float, model: type[CardModel] = CardModel) -> None:
        self.card = model(len(weights), drain)
        self._player = TurnPlayer(self.card, self.card, Rules(cycle=1.0), lambda id_: self._computing.pids(id_))  # type: ignore[arg-type]
        self.live_containers = live_containers = {}
        self.ended: list[LiveContainer] = []
        for pid, weight in enumerate(weights, start=1):
            its = live_containers[str(pid)] = LiveContainer(
                str(pid), str(pid), {GPU: 1}, compute_weight=weight, started_at=1.0
            )
            its.sessions = {pid: SimpleNamespace(pid=pid, ended=False, page=GATELESS)}  # type: ignore[dict-item]
        broker = SimpleNamespace(live_containers=live_containers, ended=self.ended, state=State())
        self._computing = computing.Computing(Watched(), broker, self._player, print)  # type: ignore[arg-type]

    async def play(self, what: "Callable[[Scene], Coroutine[Any, Any, T]]") -> T:
        await self._player.start({GPU: Mode.TURNS})
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(work) for work in (self.card.run(), self._computing.run())]
            await asyncio.sleep(SETTLES)
            answer = await what(self)
            for task in running:
                task.cancel()
        return answer

    async def shares(self) -> tuple[list[float], float]:
        """The part of the card that each has; and the part of the time they take turns."""
        before, by_turns = dict(self.card.had), self.card.by_turns
        await asyncio.sleep(MEASURED)
        had = [(self.card.had[pid] - was) / MEASURED for pid, was in before.items()]
        return had, (self.card.by_turns - by_turns) / MEASURED

    async def churn(self, live: str) -> None:
        """Its process ends after 0.2 to 0.4 s, as another one of it begins: no look need have met it alive."""
        its, chance = self.live_containers[live], random.Random(7)
        while True:
            await asyncio.sleep(chance.uniform(0.2, 0.4))
            (old,) = its.sessions
            new = self.card.replace(old)
            its.sessions = {new: SimpleNamespace(pid=new, ended=False, page=GATELESS)}
            its.note_gone([old], time.monotonic())

    async def shares_of_lives(self) -> tuple[float, float]:
        """As `shares`, of two, while the processes of the second one come and go; and what the player counts for it."""
        async with asyncio.TaskGroup() as group:
            churning = group.create_task(self.churn("2"))
            await asyncio.sleep(SETTLES)
            begun, before = sum(self.card.had.values()), self.card.had[1]
            await asyncio.sleep(2 * MEASURED)
            steady = (self.card.had[1] - before) / (sum(self.card.had.values()) - begun)
            used = (sum(self.card.had.values()) - begun) / (2 * MEASURED)
            churning.cancel()
        return steady, used

    async def seconds_until_it_rests(self, pid: int) -> float:
        """In which it has turns that are nobody's, once it computes no more."""
        self.card.idle = {pid}
        for tenth in range(1, 1000):
            await asyncio.sleep(0.1)
            if not self._player.turns.takers[str(pid)].where:
                return tenth / 10
        return inf


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Plays a scene, on a clock that nobody waits for."""
    clock = Skipping()

    def play(scene: Scene, what: Callable[[Scene], Coroutine[Any, Any, Any]]) -> Any:
        with (
            asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(clock)) as runner,
            monkeypatch.context() as patch,
        ):
            for name in ("time", "monotonic"):
                patch.setattr(time, name, lambda: clock.now)
            patch.setattr(pynvml, "nvmlDeviceGetProcessUtilization", lambda handle, since: scene.card.nvml(since))
            patch.setattr(proc, "processor_time", lambda pid: clock.now)  # each keeps one busy
            return runner.run(scene.play(what))

    return play


@pytest.mark.parametrize(
    ("weights", "drain"),
    [([100] * 8, 0.033), ([50, 30, 20], 0.1), ([75, 25], 0.033), ([90, 10], 0.033), ([95, 5], 0.1)],
)
def test_shares_are_as_weights_where_a_look_names_one_of_those_who_compute(
    weights: list[int], drain: float, played: Any
) -> None:
    had, by_turns = played(Scene(weights, drain), Scene.shares)
    assert had == pytest.approx([weight / sum(weights) for weight in weights], abs=0.01)
    assert by_turns > 0.97


def crowd(processes: int) -> Scene:
    """A container of so many processes, and one of one process."""
    scene = Scene([100] * (processes + 1), 0.01)
    of_one, its = str(processes + 1), range(1, processes + 1)
    scene.live_containers["1"].sessions = {pid: SimpleNamespace(pid=pid, ended=False, page=GATELESS) for pid in its}  # type: ignore[misc]
    for other in scene.live_containers.keys() - {"1", of_one}:
        del scene.live_containers[other]
    return scene


@pytest.mark.parametrize("processes", [4, 8, 16])
def test_many_processes_of_one_container_leave_another_its_share(processes: int, played: Any) -> None:
    """The driver divides a card among processes, so the one is seldom seen on it before they take turns."""
    had, _ = played(crowd(processes), Scene.shares)
    assert had[-1] == pytest.approx(0.5, abs=0.05)


def test_who_leaves_much_of_the_card_idle_has_its_share_and_what_others_leave(played: Any) -> None:
    """Both compute at once for a part of the time, so what they have is not as their weights are; nobody has less."""
    (one, two), _ = played(Scene([300, 100], 0.01, HalfIdle), Scene.shares)
    assert min(one - 0.75, two - 0.25) > 0
    assert one + two > 1.2


@pytest.mark.parametrize(("weights", "seconds"), [([50, 50], 3), ([75, 25], 10), ([95, 5], 45), ([100] * 8, 40)])
def test_who_computes_no_more_is_found_to_rest_however_small_its_turns_are(
    weights: list[int], seconds: float, played: Any
) -> None:
    assert 0 < played(Scene(weights, 0.033), lambda scene: scene.seconds_until_it_rests(len(weights))) < seconds


def test_work_of_processes_that_have_ended_is_their_containers(played: Any) -> None:
    """A container whose processes live for 0.2 to 0.4 s has no more than its weight says."""
    steady, used = played(Scene([300, 100], 0.033), Scene.shares_of_lives)
    assert steady == pytest.approx(0.75, abs=0.05)
    assert used > 0.9


async def _short_containers(scene: Scene, owes: bool) -> float:
    """Another person has three at a time, which live for 0.4 s, and so do those after them. What the first one has."""
    scene.live_containers.pop("2")
    scene.card.ended.add(2)
    begun, before = time.time(), scene.card.had[1]

    async def one_after_another() -> None:
        while time.time() < begun + MEASURED:
            if owes and scene._player.owes("bob", [GPU]):
                await asyncio.sleep(0.05)
                continue
            pid = scene.card.begin()
            live = scene.live_containers[str(pid)] = LiveContainer(str(pid), "", {GPU: 1}, owner="bob", started_at=1.0)
            live.sessions = {pid: SimpleNamespace(pid=pid, ended=False, page=GATELESS)}  # type: ignore[dict-item]
            await asyncio.sleep(0.4)
            scene.live_containers.pop(str(pid))
            live.sessions = {}
            live.note_gone([pid], time.monotonic())
            scene.card.ended.add(pid)
            scene.ended[:] = [each for each in [*scene.ended, live] if each.pids_lately(time.monotonic())]

    await asyncio.gather(*(one_after_another() for _ in range(3)))
    return (scene.card.had[1] - before) / MEASURED


@pytest.mark.parametrize(("owes", "least", "most"), [(False, 0.2, 0.35), (True, 0.42, 0.6)])
def test_short_containers_are_charged_to_their_person_and_wait_until_that_is_paid(
    owes: bool, least: float, most: float, played: Any
) -> None:
    assert least <= played(Scene([100, 100], 0.033), lambda scene: _short_containers(scene, owes)) <= most


def test_a_pid_that_has_ended_is_its_containers_until_another_has_it() -> None:
    scene = Scene([100, 100], 0.033)
    one, two = scene.live_containers["1"], scene.live_containers["2"]
    one.sessions = {}
    one.note_gone([1], 100.0)
    assert scene._computing._owners(101.0) == {1: "1", 2: "2"}
    two.sessions[1] = SimpleNamespace(pid=1, ended=False)
    assert scene._computing._owners(101.0) == {1: "2", 2: "2"}
    two.sessions = {}
    assert scene._computing._owners(200.0) == {}
