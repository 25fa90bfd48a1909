"""A holder that does not answer its driver is put aside, and the others give way at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite

import pytest

from scheduler.card.helper import is_stopped
from scheduler.containers import swapping
from scheduler.core.events import Effect, Event, NotMoved
from tests.scheduler.test_preemption import eventually_events, lab, notebook, run_cell
from tests.support.eventually import eventually, until
from tests.support.host import GIB, Host
from tests.support.traced import drivers_thread, traced

__all__ = ["lab"]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid))
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_honest_holders_serve_who_waits(lab: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first one a debugger has stopped the driver's own thread; its first thread sleeps as ever."""
    monkeypatch.setattr(swapping, "AGAIN", 0.1)
    silent, honest = [
        await notebook(lab, 2 * GIB, quota=2 * GIB + GIB // 4, name=name, priority=priority)
        for name, priority in (("silent", -10), ("honest", 0))
    ]
    live = lab.up.broker.live_containers[str(silent.pk)]
    (session,) = live.sessions.values()
    with traced(drivers_thread(session.pid)):
        assert is_stopped(session.pid)
        words = ("workload", "--bytes", "2GiB", "--check", "1MiB", "--hold", "600")
        waits, _ = await lab.start_launch(*words, gpu_memory=2 * GIB + GIB // 4, name="waits")
        await eventually_events(lab, silent, "not_moved")  # of lower priority, it is asked first
        await lab.says(waits, "holding")
        assert (await lab.get(honest)).state == "swapped"
        assert live.unanswered == 1
        assert live.swap == "leaving"  # it is let go as soon as it answers; nothing else waits for that
    await eventually(lambda: live.swap == "")
    run_cell(lab, silent)
    await lab.says(silent, "cell 1 is right")


async def test_it_is_put_aside_for_longer_each_time(lab: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "AGAIN", 0.1)
    container = await notebook(lab)
    live = lab.up.broker.live_containers[str(container.pk)]
    (session,) = live.sessions.values()
    spans: list[float] = []
    tell = lab.up.broker.tell

    def hears(event: Event) -> list[Effect]:
        if isinstance(event, NotMoved) and isfinite(event.seconds):
            spans.append(event.seconds)
        return tell(event)

    monkeypatch.setattr(lab.up.broker, "tell", hears)
    for times in range(1, 4):
        with stopped(session.pid):
            assert (await lab.command("pause", container, free_memory=True)).outcome == "refused"
        await eventually(lambda: live.swap == "" and len(spans) >= times)  # noqa: B023
    assert spans == [swapping.ASIDE, 2 * swapping.ASIDE, 4 * swapping.ASIDE]
    assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
    assert live.unanswered == 0
    await lab.command("resume", container)
    run_cell(lab, container)
    await lab.says(container, "cell 1 is right")
