"""The whole path: a program under a quota is launched, suspended, resumed and ended; the records tell it."""

from __future__ import annotations

from tests.support.host import GIB, MIB
from tests.support.inprocess.host import InProcess

CONTEXT = 66 * MIB


async def test_program_runs_within_its_quota_and_its_memory_comes_back(host: InProcess) -> None:
    container = await host.launch("workload", "--bytes", "512MiB", gpu_memory=GIB)
    ended = await host.until(container, "exited")
    assert ended.exit_code == 0, host.log(container)
    claim = await host.returned(container)
    assert claim.quota == GIB
    assert 512 * MIB + CONTEXT <= claim.peak <= GIB
    assert claim.granted == claim.used == 0
    kinds = {event.kind for event in await host.events(container)}
    assert {"started", "accepted", "freed", "ended"} <= kinds


async def test_container_is_suspended_and_resumes_when_memory_comes_back(host: InProcess) -> None:
    holder = await host.launch("workload", "--bytes", "3GiB", "--hold", "3600", gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    waiter = await host.launch("workload", "--bytes", "3GiB", gpu_memory=4 * GIB)
    waiting = await host.until(waiter, "suspended")
    assert waiting.suspended_since is not None
    assert (await host.command("kill", holder)).outcome == "done"
    ended = await host.until(waiter, "exited")
    assert ended.exit_code == 0, host.log(waiter)
    assert ended.suspended_seconds > 0
    assert (await host.get(holder)).state == "killed"
    resumed = await host.events(waiter, "suspended", "resumed")
    assert [event.kind for event in resumed[:2]] == ["suspended", "resumed"]
    assert resumed[1].waited > 0
