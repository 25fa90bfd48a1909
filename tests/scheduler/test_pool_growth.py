"""A container whose pool grows waits for that with nothing more on the card, and others get what they were given."""

import sys
from pathlib import Path

from tests.scheduler.test_charged_is_real import HOLD, START
from tests.support.host import GIB, Host, host

__all__ = ["host"]


# A pool of 2,400 MiB of which each second block of 96 MiB is free, and then an allocation that fits into none of these.
GROWS = """
pool = c_void_p()
cuda("cuDeviceGetDefaultMemPool", byref(pool), 0)
cuda("cuMemPoolSetAttribute", pool, 4, byref(c_uint64((1 << 64) - 1)))
addresses = [cuda.alloc_async(96 * MIB) for _ in range(25)]
for address in addresses[::2]:
    cuda("cuMemFreeAsync", c_uint64(address), None)
cuda.alloc_async(928 * MIB)
"""


async def test_a_growth_that_waits_leaves_a_guaranteed_container_its_memory(host: Host, tmp_path: Path) -> None:
    """2 of 5 GiB are guaranteed and not in use yet: the card has room for the growth, the scheduler has not."""
    begin = tmp_path / "begin"
    wait = f"until [ -e {begin} ]; do sleep 0.1; done; exec {host.workload} --bytes 1900MiB --check 1MiB --hold 600"
    guaranteed = await host.launch("bash", "-c", wait, gpu_memory=2 * GIB, guaranteed=True)
    grows = await host.launch(sys.executable, "-c", START + GROWS + HOLD, gpu_memory=4 * GIB)
    await host.until(grows, "suspended")
    begin.touch()
    await host.says(guaranteed, "holding")
    assert (await host.get(grows)).state == "suspended"
    await host.command("kill", guaranteed)
    await host.says(grows, "holding")
