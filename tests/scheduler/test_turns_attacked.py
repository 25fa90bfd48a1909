"""Who would compute more than is due to it, on virtual time."""

import asyncio
import itertools
from typing import Any

import pytest

from scheduler.card.processes import AT_ONCE, LOCK_WITHIN, SHORTEST
from scheduler.card.turns import HUNG, Part
from scheduler.containers import terminator
from scheduler.containers.terminator import ENDING
from scheduler.core.turns import Ticked
from tests.scheduler.test_turns import ALWAYS, SETTLES, compute, computing, goes_on, standing, take_turns
from tests.support.host import GIB
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import Process
from tests.support.inprocess.programs import workload
from web.models import Container


async def test_many_that_begin_at_once_take_turns_all_the_same(host: InProcess) -> None:
    await compute(host, "shared")
    many = [await computing(host) for _ in range(6)]
    await compute(host, "turns")
    await take_turns(host, *many)


async def lets_its_child_go(process: Process, *words: str) -> None:
    """Any process of a container may let another go: the driver asks for no right."""
    child = process.fork(workload, *words)
    while True:
        await process.machine.driver.ask("unlock", child.pid)
        await asyncio.sleep(0.002)


async def test_who_is_let_go_by_a_process_of_its_own_is_found_out(host: InProcess, settings: Any) -> None:
    honest = await computing(host, compute_weight=1000)
    cheat = await host.launch(lets_its_child_go, *ALWAYS, gpu_memory=GIB // 2, compute_weight=1)
    await host.says(cheat, "computing")
    await host.eventually(lambda: str(cheat.pk) in host.up.turns.failed)
    await host.up.store.flush()
    assert "computed while it was stopped" in (await host.get(cheat)).no_turns
    before = standing(host, cheat).had
    await goes_on(host, honest, cheat)
    host.up.turns._decide(Ticked(host.up.turns.now()))
    assert standing(host, cheat).had > before
    settings.GPUSHARE_BYPASS_ACTION = "kill"
    host.up.turns.bar(str(cheat.pk), HUNG, on=False)
    ended = await host.until(cheat, "killed")
    assert "computed during the turns of others" in ended.reason


async def of_many(host: InProcess, processes: int) -> tuple[Container, Part]:
    """One that has so many, each with a context, and what is played for it."""

    async def many(process: Process) -> None:
        for _ in range(processes):
            process.fork(workload, "--bytes", "4MiB", "--chunks", "1", "--hold", "6000")
        await process.terminated.wait()

    container = await host.launch(many, gpu_memory=2 * GIB)
    await host.eventually(lambda: host.log(container).count("holding") == processes)
    host.up.computing.meet()
    assert len(host.up.computing.pids(str(container.pk))) == processes
    return container, host.up.turns._parts[str(container.pk)]


async def test_many_processes_that_do_not_answer_leave_the_helper_to_others(host: InProcess) -> None:
    container, part = await of_many(host, 10)
    for process in host.processes(container):
        process.freeze()
    assert "is stopped" in await part.processes.lock()
    asked = {pid for order, pid in host.driver.asked if order == "stop"}
    assert 0 < len(asked) <= AT_ONCE
    assert len(part.processes.locked) <= AT_ONCE
    for process in host.processes(container):
        process.freeze(False)
    assert await part.processes.unlock()


async def test_a_call_that_waits_for_ever_is_no_way_round_the_turns(host: InProcess) -> None:
    """Who is suspended took no turns, and was not locked: one call too many, and the rest computed as it liked."""

    async def one_call_too_many(process: Process) -> None:
        process.fork(workload, *ALWAYS)
        await process.alloc(3 * GIB)

    holder = await host.launch("workload", "--bytes", "3GiB", "--hold", "6000", gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    honest = await computing(host, compute_weight=300)
    cheat = await host.launch(one_call_too_many, gpu_memory=4 * GIB, compute_weight=100)
    await host.until(cheat, "suspended")
    await take_turns(host, honest, cheat)
    await asyncio.sleep(SETTLES)
    assert await host.shares(honest, cheat, seconds=10) == pytest.approx([0.75, 0.25], abs=0.03)
    await host.command("kill", honest)
    await host.command("change", cheat, compute_limit=20)
    await host.eventually(lambda: host.up.turns.is_stopped(str(cheat.pk)))  # nobody else is there: for its limit
    await asyncio.sleep(SETTLES)
    assert await host.shares(cheat, seconds=10) == pytest.approx([0.2], abs=0.02)
    assert (await host.get(cheat)).state == "suspended"


async def test_a_long_grace_is_no_way_round_the_turns(host: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may give what is theirs an hour to end in, and it need not care."""
    monkeypatch.setattr(terminator, "SPARED", 1.0)

    async def deaf(process: Process) -> None:
        process.deaf = True
        await workload(process, *ALWAYS)

    honest, cheat = await computing(host), await host.launch(deaf, gpu_memory=GIB // 4)
    await host.says(cheat, "computing")
    await take_turns(host, honest, cheat)
    killing = [asyncio.create_task(host.command("kill", cheat, grace=600)) for _ in range(2)]
    ending = str(cheat.pk), ENDING
    await host.eventually(lambda: ending in host.up.turns._parts[ending[0]].barred)
    await host.eventually(lambda: ending not in host.up.turns._parts[ending[0]].barred)
    before = standing(host, cheat).held_back
    await host.eventually(lambda: standing(host, cheat).held_back > before + 1)
    await host.command("kill", cheat)
    await asyncio.gather(*killing)
    await host.until(cheat, "killed")


async def test_many_processes_have_no_more_time_to_be_stopped_than_one(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had five seconds, and all others stood still until the last had been stopped."""
    (_, part), stop = await of_many(host, 10), host.up.turns._card.stop
    given: list[float] = []

    async def noted(pid: int, within: float) -> Any:
        given.append(within)
        return await stop(pid, within)

    monkeypatch.setattr(host.up.turns._card, "stop", noted)
    host.driver.takes["stop"] = 0.3
    assert await part.processes.lock() == ""
    # Each has waited for those before it, and has only what these have left.
    assert given == pytest.approx([max(SHORTEST, LOCK_WITHIN - 0.3 * (number // AT_ONCE)) for number in range(10)])
    assert await part.processes.unlock()


async def test_one_that_begins_processes_all_the_time_is_given_up(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time all were stopped there was another, and everybody else waited for that one, too."""
    (_, part), stop = await of_many(host, 20), host.up.turns._card.stop
    pids, looks = sorted(host.up.computing.pids(part.id)), itertools.count(1)

    async def slowly(pid: int, within: float) -> Any:
        await asyncio.sleep(0.3)
        return await stop(pid, within)

    monkeypatch.setattr(host.up.turns._card, "stop", slowly)
    monkeypatch.setattr(part.processes, "_pids", lambda _: set(pids[: next(looks)]))  # each look finds one more
    assert await part.processes.lock() == "It begins processes faster than they can be stopped."
    assert 0 < len(part.processes.locked) < 20
    assert await part.processes.unlock()
