"""Containers that compute at once take turns by weight: a real scheduler on virtual time, where shares are exact.

With real programs, kills and the helper's own processes: test_turns_processes.py.
"""

import asyncio

import pytest

from scheduler.card.helper import State
from scheduler.card.processes import LOCK_WITHIN
from scheduler.card.turns import HUNG
from scheduler.core.turns import Standing
from tests.support.host import GIB, query
from tests.support.inprocess.driver import HANGS
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import Process
from tests.support.inprocess.programs import workload
from web.models import Container, Gpu, Node

ALWAYS = ("--bytes", "64MiB", "--compute", "6000")
SETTLES = 4  # seconds


async def computing(host: InProcess, *more: str, **fields: object) -> Container:
    container = await host.launch("workload", *ALWAYS, *more, **{"gpu_memory": GIB // 4, **fields})
    await host.says(container, "computing")
    return container


async def take_turns(host: InProcess, *containers: Container) -> None:
    """Waits until each has been stopped once."""

    def held_back(container: Container) -> bool:
        its = host.up.turns.standing(str(container.pk))
        return its is not None and its.held_back > 0

    await host.eventually(lambda: all(map(held_back, containers)))


def standing(host: InProcess, container: Container) -> Standing:
    its = host.up.turns.standing(str(container.pk))
    assert its is not None
    return its


def state(host: InProcess, container: Container) -> set[State]:
    """Of its processes, by the driver."""
    return {host.driver.states[process.pid] for process in host.processes(container)}


async def goes_on(host: InProcess, *containers: Container) -> None:
    before = [host.had(each) for each in containers]
    await host.eventually(lambda: all(host.had(each) > was for each, was in zip(containers, before, strict=True)))


async def compute(host: InProcess, how: str) -> None:
    (gpu,) = host.cards.cards
    answer = await host.command("compute", gpu=gpu, compute=how)
    assert answer.outcome == "done", answer.message


@pytest.mark.parametrize("weights", [(300, 100), (50, 30, 20), (90, 10)])
async def test_those_that_compute_share_the_card_by_their_weights(host: InProcess, weights: tuple[int, ...]) -> None:
    its = [await computing(host, compute_weight=weight) for weight in weights]
    await take_turns(host, *its)
    await asyncio.sleep(SETTLES)
    given = host.up.turns.given
    shares = await host.shares(*its, seconds=10)
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], abs=0.03)
    assert host.up.turns.given > given, "each turn is counted"


async def test_a_weight_and_how_a_card_is_shared_change_while_they_compute(host: InProcess) -> None:
    one, two = await computing(host, compute_weight=300), await computing(host, compute_weight=100)
    await take_turns(host, one, two)
    await host.command("change", two, compute_weight=300, compute_limit=None)
    await asyncio.sleep(SETTLES)
    assert await host.shares(one, two, seconds=10) == pytest.approx([0.5, 0.5], abs=0.02)
    await compute(host, "shared")
    await asyncio.sleep(1)
    before = [standing(host, each).held_back for each in (one, two)]
    assert await host.shares(one, two, seconds=3) == pytest.approx([0.5, 0.5])
    assert [standing(host, each).held_back for each in (one, two)] == before
    assert state(host, one) == state(host, two) == {State.RUNNING}


async def test_a_lone_one_is_never_stopped_but_for_its_limit(host: InProcess) -> None:
    one = await computing(host)
    await host.launch("workload", "--bytes", "64MiB", "--hold", "600", gpu_memory=GIB // 4)
    await asyncio.sleep(2)
    assert (standing(host, one).held_back, host.driver.asked) == (0, [])
    await host.command("change", one, compute_limit=30)
    await take_turns(host, one)
    await asyncio.sleep(SETTLES)
    assert await host.shares(one, seconds=10) == pytest.approx([0.3], abs=0.02)


async def test_who_computes_little_is_served_at_once_and_stops_nobody(host: InProcess) -> None:
    training, notebook = await computing(host), await computing(host, "--every", "50")
    await asyncio.sleep(4)
    assert [standing(host, each).held_back for each in (training, notebook)] == [0, 0]


async def test_who_computes_without_a_turn_is_charged_what_the_card_says(host: InProcess) -> None:
    """And not as if it computed all the time."""
    await compute(host, "shared")
    both = _, bursts = await computing(host), await computing(host, "--every", "300")
    await host.eventually(lambda: host.up.turns.standing(str(bursts.pk)) and standing(host, bursts).had > 0.5)
    began = [(standing(host, each).had, host.had(each)) for each in both]
    await asyncio.sleep(12)
    charged, had = zip(
        *(
            (standing(host, each).had - was, host.had(each) - before)
            for each, (was, before) in zip(both, began, strict=True)
        ),
        strict=True,
    )
    assert had == pytest.approx((12 * 0.7, 12 * 0.3), abs=0.6)
    assert charged == pytest.approx(had, abs=1.0)


@pytest.mark.parametrize("free_memory", [False, True])
async def test_a_pause_at_any_moment_of_a_turn_freezes_nobody_who_is_stopped(
    host: InProcess, free_memory: bool
) -> None:
    pair = [await computing(host), await computing(host)]
    await take_turns(host, *pair)
    for number in range(12):
        await asyncio.sleep(0.17)
        answer = await host.command("pause", pair[number % 2], free_memory=free_memory)
        assert answer.outcome == "done", answer.message
        assert state(host, pair[number % 2]) == {State.CHECKPOINTED if free_memory else State.RUNNING}
        await host.command("resume", pair[number % 2])
        await host.until(pair[number % 2], "running")
    await goes_on(host, *pair)
    await host.command("kill", pair[0], grace=5)
    await host.until(pair[0], "killed")
    await goes_on(host, pair[1])


async def test_a_new_process_of_one_that_is_stopped_is_stopped_as_well(host: InProcess) -> None:
    async def one_more(process: Process, *words: str) -> None:
        process.fork(workload, *words)
        await process.asked.get()
        process.fork(workload, *words)
        await process.terminated.wait()

    one = await computing(host, compute_weight=1000)
    two = await host.launch(one_more, *ALWAYS, gpu_memory=GIB)
    await take_turns(host, one, two)
    its = host.up.turns._parts[str(two.pk)].processes
    await host.eventually(lambda: its.stops is not None)
    since = its.stops
    host.process(two).asked.put_nowait("another")
    while len(its.locked) < 2:  # noqa: ASYNC110 - closer than `eventually` looks
        await asyncio.sleep(0.01)
    assert its.stops == since, "not only when it is stopped the next time"
    await asyncio.sleep(SETTLES)
    assert await host.shares(one, two, seconds=10) == pytest.approx([10 / 11, 1 / 11], abs=0.03)


async def test_one_that_cannot_be_stopped_is_reported_and_holds_up_nobody(host: InProcess) -> None:
    one, two = await computing(host), await computing(host)
    await take_turns(host, one, two)
    host.driver.faults["stop"] = HANGS
    barred = await host.eventually(
        lambda: [id_ for id_, part in host.up.turns._parts.items() if (id_, HUNG) in part.barred]
    )
    hung, other = (one, two) if barred == [str(one.pk)] else (two, one)
    await goes_on(host, other, hung)
    assert not host.up.turns.is_stopped(str(other.pk))
    await host.up.store.flush()
    assert "did not answer a stop" in (await host.get(hung)).no_turns
    assert "did not answer a stop" in (await host.events(hung, "not_stopped"))[0].detail
    begun = host.loop.time()
    await host.command("kill", hung)
    assert host.loop.time() - begun < LOCK_WITHIN


async def test_where_the_driver_cannot_do_it_all_compute_at_once_and_it_is_reported(host: InProcess) -> None:
    await host.stop()
    host.driver.why_not = why = "CUDA's checkpoint calls cannot be used here: the driver is for CUDA 12.4."
    await host.start()
    await host.up.store.flush()
    gpu, node = await query(Gpu.objects.get), await query(Node.objects.get)
    assert (gpu.compute, gpu.compute_why, node.cannot_turn) == ("shared", why, why)
    answer = await host.command("compute", gpu=gpu.uuid, compute="turns")
    assert (answer.outcome, answer.code) == ("refused", "cannot_turn")
    assert "CUDA 12.4" in answer.message


async def test_a_scheduler_that_ends_leaves_nobody_stopped_and_what_is_found_locked_is_let_go(host: InProcess) -> None:
    pair = [await computing(host), await computing(host)]
    await take_turns(host, *pair)
    await host.stop()
    assert state(host, pair[0]) == state(host, pair[1]) == {State.RUNNING}
    pid = host.process(pair[0]).pid
    await host.driver.ask("lock", pid)  # as if scheduler, guardian and helper had died together
    await host.start()
    await goes_on(host, *pair)
    await take_turns(host, *pair)


async def test_why_it_takes_no_turns_is_reported_no_longer_than_it_is_so(host: InProcess) -> None:
    container = await host.launch("sleep", "600")

    async def no_turns() -> str:
        await host.up.store.flush()
        return (await host.get(container)).no_turns

    host.up.turns.report(str(container.pk), "It could not be stopped.")
    assert await no_turns() == "It could not be stopped."
    await host.stop()
    await host.start()
    assert host.up.turns.failed == {str(container.pk)}  # nothing shows yet that turns reach it
    assert await no_turns() == "It could not be stopped."
    await host.command("kill", container)
    await host.until(container, "killed")
    assert await no_turns() == ""


async def test_a_first_memory_that_is_withheld_is_shown_as_a_wait(host: InProcess, monkeypatch) -> None:
    until = host.clock.monotonic() + 90
    monkeypatch.setattr(host.up.sessions, "_owes", lambda owner, gpus: max(0.0, until - host.clock.monotonic()))
    two = [await host.launch("workload", *ALWAYS, gpu_memory=GIB // 4) for _ in range(2)]
    await host.until(two[0], "suspended")
    await host.passes(30)
    waits, ends = [await host.get(each) for each in two]
    assert (waits.state, waits.queue_bytes > 0, {waits.queue_position, ends.queue_position}) == (
        "suspended", True, {1, 2},
    )  # fmt: skip
    assert "have computed more than their share of the GPU. It gets its first memory in about" in waits.queue_reason
    assert (await host.command("kill", ends)).outcome == "done"
    await host.says(waits, "computing")
    await host.settle()
    waits = await host.get(waits)
    assert (waits.state, waits.queue_position, waits.queue_reason) == ("running", None, "")
    assert waits.suspended_seconds == pytest.approx(90, abs=3)
    assert host.up.sessions._withheld == {}, "nor is anything remembered of who was ended meanwhile"
