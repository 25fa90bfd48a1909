"""How long after a death the suspended call returns: under 5 ms beyond the card's own time, whatever is looked at when.

What a machine adds is measured by `benchmarks/shim/startup.py` and by `benchmarks/write_path.py`.
"""

import asyncio

from tests.support.host import GIB
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import FREE_DELAY


async def test_suspended_call_returns_within_5_ms_of_the_memory(host: InProcess) -> None:
    holder = await host.launch("workload", "--bytes", "3GiB", "--hold", "6000", gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    waiter = await host.launch("sleep", "6000", gpu_memory=4 * GIB)
    waiting = asyncio.create_task(host.process(waiter).alloc(3 * GIB))
    await host.until(waiter, "suspended")
    died = host.loop.time()
    host.engine.kill_process(host.process(holder).pid)
    await waiting
    assert host.loop.time() - died < FREE_DELAY + 0.005
