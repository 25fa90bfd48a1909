"""A holder that does not answer its driver is put aside, and the others give way at once."""

from math import isfinite

import pytest

from scheduler.card.helper import is_stopped
from scheduler.containers import moving
from scheduler.core.effects import Effect
from scheduler.core.events import Event, NotMoved
from tests.scheduler.test_preemption import eventually_events, lab
from tests.support.eventually import eventually
from tests.support.host import GIB, Host, host
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.memory import notebook, runs_cell
from tests.support.swapped import ends_well, holder
from tests.support.traced import drivers_thread, traced

__all__ = ["host", "lab"]


async def test_honest_holders_serve_who_waits(lab: InProcess) -> None:
    silent, honest = [
        await notebook(lab, 2 * GIB, quota=2 * GIB + GIB // 4, name=name, priority=priority)
        for name, priority in (("silent", -10), ("honest", 0))
    ]
    live = lab.up.broker.live_containers[str(silent.pk)]
    lab.process(silent).freeze()
    words = ("workload", "--bytes", "2GiB", "--hold", "600")
    waits, _ = await lab.start_launch(*words, gpu_memory=2 * GIB + GIB // 4, name="waits")
    await eventually_events(lab, silent, "not_moved")  # of lower priority, it is asked first
    await lab.says(waits, "holding")
    assert (await lab.get(honest)).state == "swapped"
    assert live.unanswered == 1
    assert live.swap == "leaving"  # it is let go as soon as it answers; nothing else waits for that
    lab.process(silent).freeze(False)
    await lab.eventually(lambda: live.swap == "")
    await runs_cell(lab, silent)


async def test_it_is_put_aside_for_longer_each_time(lab: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await notebook(lab)
    live = lab.up.broker.live_containers[str(container.pk)]
    spans: list[float] = []
    tell = lab.up.broker.tell

    def hears(event: Event) -> list[Effect]:
        if isinstance(event, NotMoved) and isfinite(event.seconds):
            spans.append(event.seconds)
        return tell(event)

    monkeypatch.setattr(lab.up.broker, "tell", hears)
    for times in range(1, 4):
        lab.process(container).freeze()
        assert (await lab.command("pause", container, free_memory=True)).outcome == "refused"
        lab.process(container).freeze(False)
        await lab.eventually(lambda: live.swap == "" and len(spans) >= times)  # noqa: B023
    assert spans == [moving.ASIDE, 2 * moving.ASIDE, 4 * moving.ASIDE]
    assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
    assert live.unanswered == 0
    await lab.command("resume", container)
    await runs_cell(lab, container)


async def test_one_thread_that_a_debugger_has_stopped_is_as_if_all_were(host: Host) -> None:
    """The driver's own; the first thread sleeps as ever."""
    container = await holder(host)
    (session,) = host.up.broker.live_containers[str(container.pk)].sessions.values()
    with traced(drivers_thread(session.pid)):
        assert is_stopped(session.pid)
        answer = await host.command("pause", container, free_memory=True)
    assert "is stopped, by a signal or a debugger" in answer.message
    live = host.up.broker.live_containers[str(container.pk)]
    await eventually(lambda: live.swap == "")
    await ends_well(host, container)
