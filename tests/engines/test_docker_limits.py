"""A container's limits as the kernel has them, in either version of control groups, and what is beyond them."""

from collections.abc import Callable

import pytest

from scheduler.engines.base import Launch
from scheduler.engines.docker.shared_cgroup import ROOT
from tests.engines.conftest import Opener, empty, output_of

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]
MIB = 1 << 20
FIRST = (
    "memory/memory.limit_in_bytes", "memory/memory.memsw.limit_in_bytes", "cpu/cpu.cfs_quota_us", "pids/pids.max",
)  # fmt: skip
SECOND = ("memory.max", "memory.swap.max", "cpu.max", "pids.max")


async def test_memory_processors_and_processes_are_limited_by_the_kernel(
    open_engine: Opener, a_launch: Launcher
) -> None:
    """Seen from inside, where Docker shows a container its own groups."""
    is_second = (ROOT / "cgroup.controllers").exists()
    async with open_engine(pids=77) as engine:
        limits = engine._limits
        if None in (limits.memory, limits.cpus, limits.pids):
            pytest.skip("this host has no control groups for all of them")
        files = " ".join(f"/sys/fs/cgroup/{name}" for name in (SECOND if is_second else FIRST))
        launch = a_launch("/bin/sh", "-c", f"for f in {files}; do cat $f || echo none; done", memory=64 * MIB, cpus=0.5)
        memory, swap, processors, processes = (await output_of(engine, launch)).splitlines()
        await empty(engine)
    assert (int(memory), processors, int(processes)) == (64 * MIB, "50000 100000" if is_second else "50000", 77)
    if limits.swap:
        assert int(swap) == (0 if is_second else 64 * MIB)


async def test_who_starts_more_processes_than_that_is_refused_and_goes_on(
    open_engine: Opener, a_launch: Launcher
) -> None:
    many = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 600 & done 2>/tmp/said"
    tells = "while read line; do echo $line; done </tmp/said"  # which starts none
    async with open_engine(pids=16) as engine:
        if engine._limits.pids is None:
            pytest.skip("this host has no control group for processes")
        said = await output_of(engine, a_launch("/bin/sh", "-c", f"({many}); {tells}; echo goes on"))
        await empty(engine)
    assert "fork" in said
    assert said.endswith("goes on\n")
