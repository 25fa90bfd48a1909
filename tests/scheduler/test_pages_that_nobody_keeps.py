"""A take-over keeps no page of a process that went just then, nor of one whose look came too late."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

from scheduler.containers import takeover
from scheduler.sessions import lease_pages
from tests.support.eventually import eventually
from tests.support.host import GIB, Host, host

__all__ = ["host"]


HOLDS = ("workload", "--bytes", "64MiB", "--hold", "600")


def pages() -> int:
    """Lease pages that this process, with the scheduler in it, has open."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # another thread may close it meanwhile
            links.append(path.readlink().name)
    return sum(link.startswith(f"memfd:{lease_pages.PAGE_NAME}-") for link in links)


async def test_a_process_that_ends_between_two_looks_leaves_no_page(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await host.launch(*HOLDS, gpu_memory=GIB)
    await host.says(container, "holding")
    await host.stop()
    before, asked = pages(), []

    def has_ended(pid: int) -> int:
        asked.append(pid)
        raise ProcessLookupError

    with monkeypatch.context() as patched:
        patched.setattr(takeover.os, "pidfd_open", has_ended)
        await host.start()
    assert asked
    assert pages() == before


async def test_a_look_that_comes_too_late_leaves_no_page(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await host.launch(*HOLDS, gpu_memory=GIB)
    await host.says(container, "holding")
    await host.stop()
    before, find, on, found = pages(), lease_pages.find, threading.Event(), []

    def slowly(pid: int, id_: str) -> int | None:
        assert on.wait(60)
        found.append(find(pid, id_))
        return found[-1]

    with monkeypatch.context() as patched:
        patched.setattr(takeover, "LOOK_SECONDS", 0.3)
        patched.setattr(lease_pages, "find", slowly)
        await host.start()
        on.set()
        await eventually(lambda: found)
    assert found[0] is not None
    await eventually(lambda: pages() <= before)
