"""A host that lets no thread be started for a while: nothing is lost by it, and nobody waits for ever."""

import _thread
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from scheduler import threads
from scheduler.sessions.closer import Closer
from scheduler.sessions.looks import detached_thread
from tests.support.eventually import eventually, until
from tests.support.inprocess.host import InProcess


class NoThreads:
    """As where there is no memory for another stack."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, *_: Any, **__: Any) -> int:
        self.asked += 1
        raise RuntimeError("can't start new thread")


async def test_what_could_not_be_closed_is_closed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    closer, (one, other) = Closer(), os.pipe()
    with monkeypatch.context() as short:
        short.setattr(_thread, "start_new_thread", NoThreads())
        closer.close("one", [one])
        closer.close("one", [other])
    assert closer.waiting("one") == 2
    closer.start()
    await eventually(lambda: closer.waiting("one") == 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(one)


async def test_container_that_ends_meanwhile_ends_once(host: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end was reported, and then again at each look, because its socket could not be closed."""
    container = await host.launch("sleep", "600")
    with monkeypatch.context() as short:
        none = NoThreads()
        short.setattr("scheduler.sessions.closer._thread.start_new_thread", none)
        short.setattr(host.up.server, "refuses_descriptors", False)
        host.engine.kill_process(host.process(container).pid)
        await host.eventually(lambda: none.asked)
        await host.up.containers.reconcile()
    await host.until(container, "failed")
    await host.up.containers.reconcile()
    assert [event.kind for event in await host.events(container)] == ["started", "ended"]


async def test_look_that_no_thread_can_be_started_for_fails_like_one_without_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who asks for it hangs up then, and the program connects again; it was held for ever."""
    monkeypatch.setattr("scheduler.sessions.looks._thread.start_new_thread", NoThreads())
    with pytest.raises(OSError, match="no thread"):
        await detached_thread(os.getpid)


NO_MORE = """
import asyncio, threading
from scheduler import threads

def none(*_):
    raise RuntimeError("can't start new thread")

async def main():
    threads.need_no_more(asyncio.get_running_loop())
    threading._start_new_thread = none
    print(await asyncio.to_thread(lambda: "called"))
    print(await (await asyncio.create_subprocess_exec("sh", "-c", "exit 3")).wait())

asyncio.run(main())
"""


def test_a_schedulers_loop_needs_no_more_threads() -> None:
    """Who was paused was refused for want of a thread, and done all the same; a keeper was started, and not known."""
    done = subprocess.run([sys.executable, "-c", NO_MORE], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["called", "3"], done.stderr


def test_pool_that_a_host_has_no_threads_for_leaves_none_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    start, allowed = threading.Thread.start, iter([True, True])

    def at_most_two(thread: threading.Thread) -> None:
        if not next(allowed, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", at_most_two)
    with pytest.raises(RuntimeError, match="can't start"):
        threads.pool(5, "refused")
    until(lambda: not any(each.name.startswith("refused") for each in threading.enumerate()))
