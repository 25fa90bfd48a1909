"""What containers computed, by NVML, and what the turns gave them: kept for a minute, a life and the history."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from scheduler.gpus import Reading
from scheduler.gpus.sampling import Busyness, Sampling
from scheduler.monitors.turns.shares import Part, Shares
from scheduler.sessions.live_containers import LiveContainer
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from tests.support.nvml import Nvml
from web.models import Claim, Container, UsageSample

GPU = "GPU-0"


class Desk:
    """A broker's clock, live containers, and the store that the figures go to."""

    def __init__(self, *names: str) -> None:
        self.at = 100.0
        self.live_containers = {name: LiveContainer(name, name, {GPU: 1}) for name in names}
        self.claims: dict[str, dict[str, Any]] = {}
        self.counted: dict[str, tuple[float, float]] = {}
        self.shares = Shares(self, self, self._standing)  # type: ignore[arg-type]

    def now(self) -> float:
        return self.at

    def claim(self, container: str, gpu: str, **fields: Any) -> None:
        self.claims.setdefault(container, {}).update(fields)

    def _standing(self, live: LiveContainer, gpu: str) -> Any:
        counted = self.counted.get(live.id)
        return counted and SimpleNamespace(due=counted[0], held_back=counted[1])

    def look(self, after: float = 1.0, **busy: int) -> dict[str, Part]:
        """`busy`: per cent by container, each of which has one process."""
        self.at += after
        pids = {name: pid for pid, name in enumerate(self.live_containers)}
        for name, live in self.live_containers.items():
            live.sessions = {1: SimpleNamespace(pid=pids[name], ended=False)}  # type: ignore[dict-item]
        loads = None if busy.get("none") else {pids[name]: load for name, load in busy.items()}
        found = self.shares.look({GPU: Reading(used=0, processes={}, busy=loads)})
        return {container: part for (container, _), part in found.items()}


def test_what_was_due_and_held_back_since_the_last_look_the_turns_tell() -> None:
    desk = Desk("a")
    desk.counted["a"] = (60.0, 70.0)  # before we looked: nobody knows when
    assert desk.look() == {"a": (0, 0, 0)}
    desk.counted["a"] = (60.5, 70.75)
    assert desk.look(a=25) == {"a": (0.25, 0.5, 0.75)}
    desk.counted["a"] = (0.0, 0.0)  # the turns began anew
    assert desk.look() == {"a": (0, 0, 0)}


def test_a_minute_forgets_and_a_life_does_not() -> None:
    desk = Desk("a")
    for second in range(101):
        desk.counted["a"] = (0.4 * second, 0.3 * second)
        desk.look(a=50 if second else 0)
    claim = desk.claims["a"]
    assert [claim[name] for name in ("had", "due", "held_back")] == [50.0, 40.0, 30.0]
    assert [claim[f"{name}_lately"] for name in ("had", "due", "held_back")] == [30.0, 24.0, 18.0]


def test_no_minute_is_longer_than_a_minute_however_the_looks_fall() -> None:
    desk = Desk("a")
    for _ in range(100):
        desk.look(1.02, a=100)
        assert desk.claims["a"]["had_lately"] <= 60
    assert desk.claims["a"]["had_lately"] == 60


def test_whose_gpu_has_no_turns_any_more_is_not_held_back_lately() -> None:
    desk = Desk("a")
    for second in range(3):
        desk.counted["a"] = (second, second)
        desk.look(a=100 if second else 0)
    del desk.counted["a"]
    desk.look(a=50)
    assert [desk.claims["a"][f"{name}_lately"] for name in ("had", "due", "held_back")] == [2.5, None, None]
    assert desk.claims["a"]["held_back"] == 2.0


def test_without_turns_nvml_tells_what_was_had_and_nobody_is_due_anything() -> None:
    desk = Desk("a", "b")
    desk.look()
    assert desk.look(2.0, a=30) == {"a": (0.6, None, None), "b": (0.0, None, None)}
    assert desk.claims["a"]["due_lately"] is None
    crowd = desk.look(1.0, a=100, b=100)  # no card is busier than busy
    assert {name: part.had for name, part in crowd.items()} == {"a": 0.5, "b": 0.5}


def computed(seen: dict[int, int], looks: list[float]) -> dict[int, float]:
    """Seconds of each, as who looks at these times makes them out."""
    nvml, sampling, had = Nvml(seen), Sampling(0.0), Counter[int]()
    for at in looks:
        nvml.now = int(at * 1e6)
        if work := sampling.take(nvml, at):
            for pid, part in work.parts.items():
                had[pid] += part * (work.until - work.since)
    return dict(had)


@pytest.mark.parametrize("apart", [0.1, 0.25, 1.0, 2.5])
def test_what_two_computed_by_turns_is_reported_whenever_one_looks(apart: float) -> None:
    looks = [(number + 1) * apart for number in range(int(20 / apart))]
    seen = {200_000 * number: 7 if number % 4 else 8 for number in range(1, 100)}
    assert computed(seen, looks) == {7: pytest.approx(15, abs=1.5), 8: pytest.approx(5, abs=1)}


def test_what_was_idle_for_long_is_not_counted_as_computed_once_somebody_computes() -> None:
    looks = [number * 0.25 for number in range(1, 81)]
    once = {200_000 * number: 7 if number % 5 == 0 else 0 for number in range(1, 100)}  # a look in five finds it there
    assert computed(once, looks)[7] == pytest.approx(4, abs=1)
    late = {200_000 * number: 7 if number > 50 else 0 for number in range(1, 100)}
    assert computed(late, looks)[7] == pytest.approx(10, abs=0.7)


@pytest.mark.parametrize("late", [0.05, 0.3, 0.55, 0.8])
@pytest.mark.parametrize("apart", [0.25, 1.0, 2.5])
@pytest.mark.parametrize(("period", "every"), [(0.2, 5), (0.2, 4.5), (1 / 6, 6), (1.03, 3.3)])
def test_what_bursts_take_is_reported_whenever_one_asks(period: float, every: float, apart: float, late: float) -> None:
    """However long before one asks they were: NVML's mean is of the idle time after them, too."""
    nvml, busyness, had = Nvml(), Busyness(100.0), 0.0
    nvml.seen = {int((100 + period * n) * 1e6): 7 if n % every < 1 else 0 for n in range(int(120 / period))}
    for number in range(1, int(100 / apart)):
        now = 100 + number * apart + late
        nvml.now = int(now * 1e6)
        had += busyness.take(nvml, now).get(7, 0.0) / 100 * apart
    assert had == pytest.approx(100 / every, rel=0.2)


@pytest.mark.parametrize("late", [0.05, 0.3, 0.55, 0.8])
def test_what_a_card_tells_that_looks_once_a_second_is_of_a_whole_second(late: float) -> None:
    seen = {int(1e6 * (second + late)): 7 if second > 9 else 0 for second in range(20)}
    assert computed(seen, [number * 0.25 for number in range(1, 81)])[7] == pytest.approx(10, abs=0.8)


def test_a_process_past_the_shim_computes_for_its_container_too() -> None:
    desk = Desk("a")
    desk.look()
    desk.live_containers["a"].past_shim = {77: 1 << 20}
    reading = Reading(used=0, processes={}, busy={77: 40.0})
    assert reading.computed(desk.live_containers["a"].pids) == 40.0  # so it is not idle either
    desk.at += 1.0
    assert desk.shares.look({GPU: reading})["a", GPU].had == 0.4


def test_what_nvml_does_not_tell_is_not_guessed() -> None:
    desk = Desk("a")
    desk.look(none=1)
    assert desk.look(none=1) == {"a": (None, None, None)}
    assert desk.look(30.0, a=100) == {"a": (None, None, None)}  # it keeps a few seconds only
    assert desk.claims["a"]["had"] is None


def test_an_earlier_schedulers_count_goes_on() -> None:
    desk = Desk("a")
    desk.live_containers["a"].computed = {GPU: (1000.0, 900.0, None)}
    desk.look()
    desk.look(a=50)
    assert [desk.claims["a"][name] for name in ("had", "due", "held_back")] == [1000.5, 900.0, None]
    desk.live_containers.clear()
    assert desk.look() == {}


async def test_it_is_written_down_and_taken_over(host: InProcess) -> None:
    container = await host.launch("sleep", "600")
    clock = asyncio.get_running_loop().time
    begun = clock()

    def standing(live: LiveContainer, gpu: str) -> Any:
        passed = clock() - begun
        return SimpleNamespace(due=0.5 * passed, held_back=0.75 * passed)

    async def claim(**like: Any) -> Claim:
        return await host.eventually(lambda: query(Claim.objects.filter(container=container, **like).first))

    host.up.shares.standing = standing
    first = await claim(due__gte=0.8)
    assert first.held_back_lately == pytest.approx(1.5 * first.due, abs=0.2)
    sample = await query(UsageSample.objects.filter(container=container, due__gt=0).first)
    assert sample.held_back == pytest.approx(1.5 * sample.due)
    await host.stop()
    before = await claim()
    await host.start()
    begun = clock()  # a new scheduler counts from nothing
    host.up.shares.standing = standing
    went_on = await claim(due__gte=before.due + 0.4)
    assert went_on.due_lately == pytest.approx(went_on.due - before.due, abs=0.15)  # rounded, each of them
    await host.stop()
    await query(Container.objects.filter(pk=container.pk).update, finished_at=timezone.now())
    await query(Claim.objects.filter(container=container).update, had_lately=None)  # as where NVML tells nothing
    await host.start()  # whatever a scheduler that was killed has not written
    assert (await claim(due_lately=None)).due > first.due


async def test_who_computes_a_little_of_each_second_had_that_little(host: InProcess) -> None:
    words = ("workload", "--bytes", "64MiB", "--compute", "600", "--every", "150")
    container = await host.launch(*words, gpu_memory=GIB // 4)
    await host.says(container, "computing")
    await asyncio.sleep(20)
    ((had, _, _),) = host.up.broker.live_containers[str(container.pk)].computed.values()
    assert had == pytest.approx(host.had(container), abs=0.35)  # of the last look nothing is counted yet
    assert had == pytest.approx(0.15 * 20, abs=0.35)
