"""Programs that were started before an upgrade go on: with the shim and the lease page of version 1."""

from __future__ import annotations

import lzma
import platform
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shim.binding.slots import SlotV1
from tests.support.card import ROOT
from tests.support.eventually import eventually
from tests.support.host import GIB, MIB, Host, a_host

OLD = ROOT / "tests" / "support" / "old" / "libgpushare-1.so.xz"
CONTEXT = 66 * MIB

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the old shim is kept for x86-64")


@pytest.fixture
def old(tmp_path: Path) -> str:
    path = tmp_path / "libgpushare.so"
    path.write_bytes(lzma.decompress(OLD.read_bytes()))
    return f"LD_PRELOAD={path}"


@pytest.fixture
async def host(transactional_db: None, settings, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    async with a_host(settings, tmp_path_factory.mktemp("host"), policy="best-fit") as host:
        yield host


async def test_old_shim_works_beside_a_new_one_and_is_taken_over(host: Host, old: str) -> None:
    hold = ("--check", "1MiB", "--hold", "600")
    before = await host.launch("env", old, str(host.workload), "--bytes", "2GiB", *hold, gpu_memory=4 * GIB)
    await host.says(before, "holding")
    (session,) = host.up.broker.sessions.values()
    assert isinstance(session.page[0], SlotV1)
    waiter = await host.launch("workload", "--bytes", "3GiB", *hold, gpu_memory=4 * GIB)
    waiter = await host.until(waiter, "suspended")

    await host.stop()
    await host.start()
    tenant = host.up.broker.tenants[str(before.pk)]
    (gpu,) = tenant.quota
    assert tenant.used(gpu) == tenant.granted(gpu) == 2 * GIB + CONTEXT
    (session,) = tenant.sessions.values()
    assert isinstance(session.page[0], SlotV1)
    assert (await host.get(before)).state == "running"

    await host.command("kill", before)
    await host.says(waiter, "holding")


async def test_old_shim_waits_is_granted_and_gives_back(host: Host, old: str) -> None:
    holder = await host.launch("workload", "--bytes", "3GiB", "--check", "1MiB", "--hold", "600", gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    container = await host.launch(
        "env", old, str(host.workload), "--bytes", "3GiB", "--check", "1MiB", gpu_memory=4 * GIB
    )
    await host.until(container, "suspended")
    await host.command("kill", holder)
    assert (await host.until(container, "exited")).exit_code == 0
    await eventually(lambda: not host.up.broker.sessions)


async def test_old_shim_is_held_to_its_quota(host: Host, old: str) -> None:
    container = await host.launch("env", old, str(host.workload), "--bytes", "2GiB", gpu_memory=GIB)
    assert (await host.until(container, "failed")).exit_code != 0
    assert await host.events(container, "suspended") == []
