"""A take-over keeps no page of a process that went just then, nor of one whose look came too late."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from scheduler.containers import takeover
from scheduler.sessions import lease_pages
from scheduler.sessions.looks import detached_thread
from tests.support.host import GIB
from tests.support.inprocess.host import InProcess


def pages() -> int:
    """Lease pages that this process, with the scheduler in it, has open."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread may close it meanwhile
            links.append(path.readlink().name)
    return sum(link.startswith(f"memfd:{lease_pages.PAGE_NAME}-") for link in links)


async def holding(host: InProcess) -> int:
    """The pages that are open while nobody looks after them."""
    container = await host.launch("workload", "--bytes", "64MiB", "--hold", "600", gpu_memory=GIB)
    await host.says(container, "holding")
    await host.stop()
    return pages()


async def test_a_process_that_ends_between_two_looks_leaves_no_page(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, asked = await holding(host), []

    def has_ended(pid: int) -> int:
        asked.append(pid)
        raise ProcessLookupError

    with monkeypatch.context() as patched:
        patched.setattr(host.kernel, "pidfd", has_ended)
        await host.start()
    assert asked
    assert pages() == before


async def test_a_look_that_comes_too_late_leaves_no_page(host: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    before = await holding(host)

    async def slowly(call: Any, too_late: Any = None) -> Any:
        looking = asyncio.create_task(detached_thread(call, too_late))
        await asyncio.sleep(0)
        if call.func is lease_pages.find:
            looking.cancel()
            raise TimeoutError
        return await looking

    monkeypatch.setattr(takeover, "detached_thread", slowly)
    await host.start()
    assert host.up.broker.unseen
    await host.eventually(lambda: pages() <= before)
