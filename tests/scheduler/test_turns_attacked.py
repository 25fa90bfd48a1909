"""Who would compute more than is due to it: a real scheduler, real programs, the simulated card."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from scheduler.card.processes import AT_ONCE
from scheduler.card.turns import HUNG
from scheduler.core.turns import Ticked
from tests.scheduler.test_turns import ALWAYS, computing, goes_on, standing, take_turns
from tests.support.eventually import eventually
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
        os.kill(pid, signal.SIGSTOP)
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
