"""What containers computed, by NVML, and what the turns gave them: kept for a minute, a life and the history."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from scheduler.gpus import Busyness, Reading
from scheduler.rounds.turns.shares import Part, Shares
from scheduler.sessions.tenants import Tenant
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import GIB, Host, query
from web.models import Claim, Container, UsageSample

GPU = "GPU-0"
A_LITTLE = ("workload", "--bytes", "64MiB", "--check", "1MiB", "--compute", "600", "--every", "150")


class Desk:
    """A broker's clock and tenants, and the store that the figures are told to."""

    def __init__(self, *names: str) -> None:
        self.at = 100.0
        self.tenants = {name: Tenant(name, name, {GPU: 1}) for name in names}
        self.claims: dict[str, dict[str, Any]] = {}
        self.counted: dict[str, tuple[float, float]] = {}
        self.shares = Shares(self, self)  # type: ignore[arg-type]
        self.shares.standing = self._standing

    def now(self) -> float:
        return self.at

    def claim(self, container: str, gpu: str, **fields: Any) -> None:
        self.claims.setdefault(container, {}).update(fields)

    def _standing(self, tenant: Tenant, gpu: str) -> Any:
        counted = self.counted.get(tenant.id)
        return counted and SimpleNamespace(due=counted[0], held_back=counted[1])

    def look(self, after: float = 1.0, **busy: int) -> dict[str, Part]:
        """`busy`: per cent by container, each of which has one process."""
        self.at += after
        pids = {name: pid for pid, name in enumerate(self.tenants)}
        for name, tenant in self.tenants.items():
            tenant.sessions = {1: SimpleNamespace(pid=pids[name], ended=False)}  # type: ignore[dict-item]
        told = None if busy.get("none") else {pids[name]: load for name, load in busy.items()}
        found = self.shares.look({GPU: Reading(used=0, processes={}, busy=told)})
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
    told = desk.claims["a"]
    assert [told[name] for name in ("had", "due", "held_back")] == [50.0, 40.0, 30.0]
    assert [told[f"{name}_lately"] for name in ("had", "due", "held_back")] == [30.0, 24.0, 18.0]


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


def test_a_sample_of_nvml_is_of_one_period_and_not_of_the_whole_time_between_two_looks() -> None:
    sixth = Busyness(now=1.0)
    sixth.take([(7, 700_000, 60), (7, 866_667, 60)], now=1.0)
    assert sixth.take([(7, 1_866_667, 60)], now=2.0) == {7: pytest.approx(10, abs=0.1)}
    assert sixth.take([], now=3.0) == {}
    second = Busyness(now=1.0)
    second.take([(7, 500_000, 40)], now=1.0)
    assert second.take([(7, 1_500_000, 40), (7, 500_000, 40)], now=2.0) == {7: 40}


def test_a_process_past_the_shim_computes_for_its_container_too() -> None:
    desk = Desk("a")
    desk.look()
    desk.tenants["a"].past_shim = {77: 1 << 20}
    reading = Reading(used=0, processes={}, busy={77: 40.0})
    assert reading.computed(desk.tenants["a"].pids) == 40.0  # so it is not idle either
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
    desk.tenants["a"].computed = {GPU: (1000.0, 900.0, None)}
    desk.look()
    desk.look(a=50)
    assert [desk.claims["a"][name] for name in ("had", "due", "held_back")] == [1000.5, 900.0, None]
    desk.tenants.clear()
    assert desk.look() == {}


async def test_it_is_written_down_and_taken_over(host: Host) -> None:
    container = await host.launch("sleep", "600")
    clock = asyncio.get_running_loop().time
    begun = clock()

    def standing(tenant: Tenant, gpu: str) -> Any:
        passed = clock() - begun
        return SimpleNamespace(due=0.5 * passed, held_back=0.75 * passed)

    async def claim(**like: Any) -> Claim:
        async with asyncio.timeout(PATIENCE):
            while True:
                if found := await query(Claim.objects.filter(container=container, **like).first):
                    return found
                await asyncio.sleep(0.05)

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


async def test_who_computes_a_little_of_each_second_had_that_little(host: Host) -> None:
    gpu = next(iter(host.up.gpus.cards))
    container = await host.launch(*A_LITTLE, gpu_memory=GIB // 4)
    await host.says(container, "computed")
    computed = host.up.broker.tenants[str(container.pk)].computed

    async def had(seconds: float) -> float:
        """When it has had so much."""
        await eventually(lambda: (computed.get(gpu, (0,))[0] or 0) >= seconds)
        return time.monotonic()

    begun = await had(0.4)
    assert 0.6 / (await had(1.0) - begun) == pytest.approx(0.15, abs=0.06)
