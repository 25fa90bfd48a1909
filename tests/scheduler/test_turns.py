"""Containers that compute at once take turns by weight: a real scheduler, real programs, the simulated card."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping

import pytest

from scheduler.card.helper import CardHelper, State
from scheduler.card.processes import LOCK_WITHIN
from scheduler.card.turns import HUNG
from scheduler.core.turns import Standing
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import GIB, Host, SeparateScheduler, on_card, query
from tests.support.running import of_a_scheduler
from tests.support.swapped import HANGS, LOCK, at_once, fault
from web.models import Container, Gpu, Node

ALWAYS = ("workload", "--bytes", "64MiB", "--check", "1MiB", "--compute", "600")


async def computing(host: Host, *more: str, **fields: object) -> Container:
    container = await host.launch(*ALWAYS, *more, **{"gpu_memory": GIB // 4, **fields})
    await host.says(container, "computed")
    return container


def units(host: Host, container: Container) -> int:
    """That its program says it has done so far."""
    return sum(int(line.split()[2]) for line in host.log(container).splitlines() if " computed " in line)


async def had(host: Host, *containers: Container, seconds: float) -> list[float]:
    """The part of the card's time that each has had, of so many seconds; the simulated card knows."""
    before, begun = [on_card(host, each) for each in containers], time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - begun
    return [(on_card(host, each) - was) / took for each, was in zip(containers, before, strict=True)]


async def shared(host: Host, its: Mapping[Container, float], seconds: float, within: float) -> None:
    """Returns once each has had its part of so many seconds: with another job on both processors some are off."""
    for _ in range(6):
        parts = await had(host, *its, seconds=seconds)
        if [part / sum(parts) for part in parts] == pytest.approx(list(its.values()), abs=within):
            return
    raise AssertionError(parts)


async def take_turns(host: Host, *containers: Container) -> None:
    """Waits until each has been stopped once."""
    for each in containers:
        await eventually(lambda: standing(host, each).held_back > 0)  # noqa: B023


def standing(host: Host, container: Container) -> Standing:
    its = host.up.turns.standing(str(container.pk))
    assert its is not None
    return its


def stopped(host: Host, container: Container) -> bool:
    return host.up.turns.is_stopped(str(container.pk))


async def state(host: Host, container: Container) -> list[State]:
    """Of its processes, by the driver."""
    pids = host.up.computing.pids(str(container.pk))
    return [await host.up.swapping._card.state(pid, 10.0) for pid in pids]


async def goes_on(host: Host, *containers: Container) -> None:
    for each in containers:
        before = units(host, each)
        await eventually(lambda: units(host, each) > before)  # noqa: B023


async def test_two_that_compute_share_the_card_by_their_weights(host: Host) -> None:
    one, two = await computing(host, compute_weight=300), await computing(host, compute_weight=100)
    await take_turns(host, one, two)
    await shared(host, {one: 0.75, two: 0.25}, 6, within=0.08)
    given = host.up.turns.given
    assert given > 0
    await host.command("change", two, compute_weight=300, compute_limit=None)
    await asyncio.sleep(2)
    assert host.up.turns.given > given, "each turn is counted"
    await shared(host, {one: 0.5, two: 0.5}, 5, within=0.08)
    await host.command("compute", gpu=next(iter(host.up.gpus.cards)), compute="shared")
    before = standing(host, one).held_back
    await goes_on(host, one, two)
    assert standing(host, one).held_back - before < 0.2
    assert not stopped(host, one)
    assert not stopped(host, two)


@pytest.mark.parametrize("weights", [(50, 30, 20), pytest.param((90, 10), marks=pytest.mark.long)])
async def test_shares_come_out_although_a_sample_names_only_one(host: Host, weights: tuple[int, ...]) -> None:
    """NVML's samples are those of an H200: each gives the whole of its time to whoever was just on the card."""
    its = [await computing(host, compute_weight=weight) for weight in weights]
    await take_turns(host, *its)
    await asyncio.sleep(2)
    await shared(host, {each: weight / 100 for each, weight in zip(its, weights, strict=True)}, 10, within=0.05)


async def test_a_lone_one_is_never_stopped_but_for_its_limit(host: Host) -> None:
    one = await computing(host)
    assert host.up.turns._guardian.pid is None
    await host.launch("workload", "--bytes", "64MiB", "--check", "1MiB", "--hold", "600", gpu_memory=GIB // 4)
    await asyncio.sleep(2)
    assert standing(host, one).held_back == 0
    await host.command("change", one, compute_limit=30)
    await take_turns(host, one)
    alone = (await had(host, one, seconds=6))[0]
    assert alone == pytest.approx(0.3, abs=0.05)


async def test_who_computes_little_is_served_at_once_and_stops_nobody(host: Host) -> None:
    training, notebook = await computing(host), await computing(host, "--every", "50", "--kernel", "5")
    await asyncio.sleep(4)
    assert [standing(host, each).held_back for each in (training, notebook)] == [0, 0]


async def test_who_computes_without_a_turn_is_charged_what_the_card_says(host: Host) -> None:
    """And not as if it computed all the time: half of the card, beside one that does."""
    await host.command("compute", gpu=next(iter(host.up.gpus.cards)), compute="shared")
    training, bursts = await computing(host), await computing(host, "--every", "300")
    await eventually(lambda: host.up.turns.standing(str(bursts.pk)))
    await eventually(lambda: standing(host, bursts).had > 0.5)
    began = [(standing(host, each).had, on_card(host, each)) for each in (training, bursts)]
    seconds = 12
    await asyncio.sleep(seconds)
    ended = [(standing(host, each).had, on_card(host, each)) for each in (training, bursts)]
    (charged, had), (charged_bursts, had_bursts) = [
        (after[0] - before[0], after[1] - before[1]) for before, after in zip(began, ended, strict=True)
    ]
    assert had_bursts / (had + had_bursts) < 0.4, "it computes in bursts"
    # A look names one of two who were there, by chance: half a second more or less (its deviation). On a busy machine
    # the card's samples are looked at late, and less is seen; it is never more.
    assert 0 < charged_bursts < had_bursts + 0.15 * seconds
    assert charged_bursts < charged < had + 0.15 * seconds


@pytest.mark.parametrize("free_memory", [False, True])
async def test_a_pause_at_any_moment_of_a_turn_freezes_nobody_who_is_stopped(host: Host, free_memory: bool) -> None:
    at_once()
    pair = [await computing(host), await computing(host)]
    await take_turns(host, *pair)
    for number in range(6):
        await asyncio.sleep(0.17)
        answer = await host.command("pause", pair[number % 2], free_memory=free_memory)
        assert answer.outcome == "done", answer.message
        if not free_memory:
            assert await state(host, pair[number % 2]) == [State.RUNNING]
        await host.command("resume", pair[number % 2])
        await host.until(pair[number % 2], "running")
    await goes_on(host, *pair)
    await host.command("kill", pair[0], grace=5)
    await host.until(pair[0], "killed")
    await goes_on(host, pair[1])


async def test_a_new_process_of_one_that_is_stopped_is_stopped_as_well(host: Host) -> None:
    one = await computing(host, compute_weight=1000)
    program, go = f"{host.workload} {' '.join(ALWAYS[1:])}", host.home / "go"
    waits = f"while [ ! -e {go} ]; do sleep 0.05; done"
    two = await host.launch("sh", "-c", f"{program} & {waits}; exec {program}", gpu_memory=GIB)
    await take_turns(host, one, two)
    go.touch()
    await eventually(lambda: len(host.up.computing.pids(str(two.pk))) == 2)
    await eventually(lambda: len(host.up.turns._parts[str(two.pk)].processes.locked) == 2)
    before = units(host, two)
    assert before
    await shared(host, {one: 10 / 11, two: 1 / 11}, 5, within=0.05)


async def test_one_that_cannot_be_stopped_is_told_of_and_holds_up_nobody(host: Host) -> None:
    one, two = await computing(host), await computing(host)
    await take_turns(host, one, two)
    fault(LOCK, HANGS)
    told = await eventually(lambda: [id_ for id_, part in host.up.turns._parts.items() if HUNG in part.barred])
    hung, other = (one, two) if told == [str(one.pk)] else (two, one)
    await goes_on(host, other, hung)
    assert not stopped(host, other)
    await host.up.store.flush()
    assert "did not answer a stop" in (await host.get(hung)).no_turns
    assert "did not answer a stop" in (await host.events(hung, "not_stopped"))[0].detail
    begun = time.monotonic()
    await host.command("kill", hung)
    assert time.monotonic() - begun < LOCK_WITHIN


async def test_where_the_driver_cannot_do_it_all_compute_at_once_and_it_is_told(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host.stop()
    why = "CUDA's checkpoint calls cannot be used here: the driver is for CUDA 12.4."

    async def why_not(helper: CardHelper) -> str:
        return why

    with monkeypatch.context() as until:
        until.setattr(CardHelper, "why_not", why_not)
        await host.start()
    await host.up.store.flush()
    gpu, node = await query(Gpu.objects.get), await query(Node.objects.get)
    assert (gpu.compute, gpu.compute_why, node.cannot_turn) == ("shared", why, why)
    answer = await host.command("compute", gpu=gpu.uuid, compute="turns")
    assert (answer.outcome, answer.code) == ("refused", "cannot_turn")
    assert "CUDA 12.4" in answer.message


KILLED = [("scheduler",), ("scheduler", "guardian"), ("scheduler", "helper")]
RARE = pytest.mark.long  # both at the same moment; the guardian alone: tests/card/test_guardian.py


@pytest.mark.parametrize(
    "killed", [pytest.param(each, marks=RARE if len(each) > 1 else (), id="+".join(each)) for each in KILLED]
)
async def test_a_killed_scheduler_leaves_nobody_stopped(host: Host, killed: tuple[str, ...]) -> None:
    pair = [await computing(host), await computing(host)]
    pids = [pid for each in pair for pid in host.up.computing.pids(str(each.pk))]
    helper = CardHelper({**os.environ, **host.up.gpus.environment})
    await host.stop()
    separate = SeparateScheduler(host.home)
    await separate.start()
    assert await helper.why_not() == ""

    async def states() -> set[State]:
        return {await helper.state(pid, 10) for pid in pids}

    async with asyncio.timeout(PATIENCE):
        while State.LOCKED not in await states():
            pass
    assert separate._process is not None
    parts = of_a_scheduler(separate._process.pid)
    for name in killed:
        for pid in parts.get(name, [separate._process.pid]):
            os.kill(pid, signal.SIGKILL)
    await separate.kill()
    began = time.monotonic()
    while State.LOCKED in await states():
        assert time.monotonic() < began + LOCK_WITHIN - 1  # at once, on a busy machine; by no deadline
    await host.start()
    await take_turns(host, *pair)
    await helper.close()


async def test_what_is_found_locked_at_a_start_is_let_go(host: Host) -> None:
    """The guardian, the helper and the scheduler have died together."""
    one = await computing(host)
    (pid,) = host.up.computing.pids(str(one.pk))
    helper = CardHelper({**os.environ, **host.up.gpus.environment})
    await host.stop()
    await helper.lock(pid, 10)
    await host.start()
    await goes_on(host, one)
    await helper.close()


async def test_why_it_takes_no_turns_is_told_no_longer_than_it_is_so(host: Host) -> None:
    container = await host.launch("sleep", "600")

    async def told(why: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                if (await query(Container.objects.get, pk=container.pk)).no_turns == why:
                    return
                await asyncio.sleep(0.02)

    host.up.turns.told(str(container.pk), "It could not be stopped.")
    await told("It could not be stopped.")
    await host.stop()
    await host.start()
    assert host.up.turns.failed == {str(container.pk)}  # nothing shows yet that turns reach it
    await told("It could not be stopped.")
    await host.command("kill", container)
    await host.until(container, "killed")
    await told("")
