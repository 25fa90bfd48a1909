"""Who would compute more than is due to it: a real scheduler, real programs, the simulated card."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from typing import Any

import pytest

from scheduler.card import processes
from scheduler.card.helper import Done
from scheduler.card.processes import AT_ONCE, LOCK_WITHIN, SHORTEST
from scheduler.card.turns import HUNG
from scheduler.containers import terminator
from scheduler.containers.terminator import ENDING
from scheduler.core.turns import Ticked
from tests.scheduler.test_turns import ALWAYS, computing, goes_on, had, standing, take_turns
from tests.support.eventually import eventually, stopped
from tests.support.host import GIB, Host

UNLOCKS = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
while True:
    cuda.cuCheckpointProcessUnlock(int(sys.argv[1]), None)
    time.sleep(0.002)
"""


async def test_many_that_begin_at_once_take_turns_all_the_same(host: Host) -> None:
    gpu = next(iter(host.up.gpus.cards))
    await host.command("compute", gpu=gpu, compute="shared")
    many = [await computing(host) for _ in range(6)]
    await host.command("compute", gpu=gpu, compute="turns")
    await take_turns(host, *many)


async def test_who_is_let_go_by_a_process_of_its_own_is_found_out(host: Host, settings: Any) -> None:
    honest = await computing(host, compute_weight=1000)
    script = f'{host.workload} {" ".join(ALWAYS[1:])} & exec {sys.executable} -c "$0" $!'
    cheat = await host.launch("sh", "-c", script, UNLOCKS, gpu_memory=GIB // 2, compute_weight=1)
    await host.says(cheat, "computed")
    await eventually(lambda: HUNG in host.up.turns._parts[str(cheat.pk)].barred)
    await host.up.store.flush()
    assert "went on computing" in (await host.get(cheat)).no_turns
    before = standing(host, cheat).had
    await goes_on(host, honest, cheat)
    host.up.turns._tell(Ticked(host.up.turns.now()))
    assert standing(host, cheat).had > before
    settings.GPUSHARE_BYPASS_ACTION = "kill"
    host.up.turns.bar(str(cheat.pk), HUNG, on=False)
    ended = await host.until(cheat, "killed")
    assert "went on computing" in ended.reason


async def test_many_processes_that_do_not_answer_leave_the_helper_to_others(host: Host) -> None:
    words = f"{host.workload} --bytes 4MiB --chunks 1 --hold 600"
    many = await host.launch("sh", "-c", f"for i in $(seq 10); do {words} & done; wait", gpu_memory=GIB)
    await eventually(lambda: host.log(many).count("holding") == 10)
    host.up.computing.meet()
    turns, part = host.up.turns, host.up.turns._parts[str(many.pk)]
    pids = host.up.computing.pids(part.id)
    assert len(pids) == 10
    for pid in pids:
        await stopped(pid)
    most = 0
    locking = asyncio.create_task(part.processes.lock())
    while not locking.done():
        most = max(most, len(turns._card._busy))
        await asyncio.sleep(0.01)
    assert "is stopped" in await locking
    assert 0 < most <= AT_ONCE
    assert len(part.processes.locked) <= AT_ONCE
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    assert await part.processes.unlock()


async def test_a_call_that_waits_for_ever_is_no_way_round_the_turns(host: Host) -> None:
    """Who is suspended took no turns, and was not locked: one call too many, and the rest computed as it liked."""
    holder = await host.launch("workload", "--bytes", "3GiB", "--check", "1MiB", "--hold", "600", gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    honest = await computing(host, compute_weight=300)
    script = f"{host.workload} {' '.join(ALWAYS[1:])} & exec {host.workload} --bytes 3GiB --check 1MiB --hold 600"
    cheat = await host.launch("sh", "-c", script, gpu_memory=4 * GIB, compute_weight=100)
    await host.says(cheat, "computed")
    await host.until(cheat, "suspended")
    await take_turns(host, honest, cheat)
    first, second = await had(host, honest, cheat, seconds=6)
    assert first / (first + second) == pytest.approx(0.75, abs=0.08)
    await host.command("kill", honest)
    await host.command("change", cheat, compute_limit=20)
    await eventually(lambda: host.up.turns.is_stopped(str(cheat.pk)))  # nobody else is there: for its limit
    assert (await had(host, cheat, seconds=6))[0] < 0.3
    assert (await host.get(cheat)).state == "suspended"


async def test_a_long_grace_is_no_way_round_the_turns(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may give what is theirs an hour to end in, and it need not care."""
    monkeypatch.setattr(terminator, "SPARED", 1.0)
    honest = await computing(host)
    script = f"trap '' TERM; exec {host.workload} {' '.join(ALWAYS[1:])}"
    cheat = await host.launch("sh", "-c", script, gpu_memory=GIB // 4)
    await host.says(cheat, "computed")
    await take_turns(host, honest, cheat)
    killing = [asyncio.create_task(host.command("kill", cheat, grace=600)) for _ in range(2)]
    await eventually(lambda: ENDING in host.up.turns._parts[str(cheat.pk)].barred)
    await eventually(lambda: ENDING not in host.up.turns._parts[str(cheat.pk)].barred)
    before = standing(host, cheat).held_back
    await eventually(lambda: standing(host, cheat).held_back > before + 1)
    await host.command("kill", cheat)
    await asyncio.gather(*killing)
    await host.until(cheat, "killed")


async def test_many_processes_have_no_more_time_to_be_stopped_than_one(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had five seconds, and all others stood still until the last had been stopped."""
    words = f"{host.workload} --bytes 4MiB --chunks 1 --hold 600"
    many = await host.launch("sh", "-c", f"for i in $(seq 10); do {words} & done; wait", gpu_memory=GIB)
    await eventually(lambda: host.log(many).count("holding") == 10)
    host.up.computing.meet()
    part, stop = host.up.turns._parts[str(many.pk)], host.up.turns._card.stop
    given: list[float] = []

    async def slowly(pid: int, within: float) -> Done:
        given.append(within)
        await asyncio.sleep(0.3)
        return await stop(pid, within)

    monkeypatch.setattr(host.up.turns._card, "stop", slowly)
    assert await part.processes.lock() == ""
    assert len(given) == 10
    for number, within in enumerate(given):  # each has waited for those before it, and has only what these have left
        assert within <= max(SHORTEST, LOCK_WITHIN - 0.3 * (number // AT_ONCE)) + 0.01
    assert await part.processes.unlock()


async def test_one_that_begins_processes_all_the_time_is_given_up(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time all were stopped there was another, and everybody else waited for that one, too."""
    monkeypatch.setattr(processes, "LOCK_WITHIN", 2.0)
    words = f"{host.workload} --bytes 4MiB --chunks 1 --hold 600"
    many = await host.launch("sh", "-c", f"for i in $(seq 20); do {words} & done; wait", gpu_memory=2 * GIB)
    await eventually(lambda: host.log(many).count("holding") == 20)
    host.up.computing.meet()
    part, stop = host.up.turns._parts[str(many.pk)], host.up.turns._card.stop
    pids, looks = sorted(host.up.computing.pids(part.id)), itertools.count(1)

    async def slowly(pid: int, within: float) -> Done:
        await asyncio.sleep(0.3)
        return await stop(pid, within)

    monkeypatch.setattr(host.up.turns._card, "stop", slowly)
    monkeypatch.setattr(part.processes, "_pids", lambda _: set(pids[: next(looks)]))  # each look finds one more
    assert await part.processes.lock() == "It begins processes faster than they can be stopped."
    assert 0 < len(part.processes.locked) < 20
    assert await part.processes.unlock()
