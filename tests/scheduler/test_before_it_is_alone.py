"""While somebody of the scheduler before is still there, nobody is stopped for a turn: and nobody waits for that."""

import asyncio
import fcntl
import os

import pytest

from scheduler.card import generation
from scheduler.card.turns import EARLY
from tests.scheduler.test_turns import computing, goes_on, take_turns
from tests.support.inprocess.host import PATIENCE, InProcess
from tests.support.inprocess.memory import asking, asks, is_back


async def begins_beside_the_last(host: InProcess) -> int:
    """A file that somebody of the last scheduler has locked, and that is nobody's once it is closed."""
    await host.stop()
    last = os.open(host.home / "guardian.lock", os.O_RDONLY)
    fcntl.flock(last, fcntl.LOCK_EX | fcntl.LOCK_NB)
    await host.start()
    return last


@pytest.mark.parametrize("free_memory", [True, False])
async def test_a_pause_is_not_held_up_by_a_stop_that_waits_for_the_last_scheduler(
    host: InProcess, free_memory: bool
) -> None:
    last = await begins_beside_the_last(host)
    one, two = [await computing(host) for _ in range(2)]
    parts = host.up.turns._parts
    await host.eventually(lambda: {str(one.pk), str(two.pk)} <= parts.keys())
    assert all((id_, EARLY) in part.barred and not part.is_busy for id_, part in parts.items())
    pausing = asyncio.create_task(host.command("pause", one, free_memory=free_memory))
    if free_memory:  # a move does wait
        live = host.up.broker.live_containers[str(one.pk)]
        await host.eventually(lambda: live.swap)
        os.close(last)
    answer = await pausing
    assert answer.outcome == "done", answer.message
    if not free_memory:
        os.close(last)
    await host.command("resume", one)
    await goes_on(host, one, two)
    await take_turns(host, one, two)
    assert not await host.events(one, "not_stopped")


async def test_whoever_asks_its_card_is_not_held_back_while_its_move_waits_for_the_last_scheduler(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "LONGEST", 10 * PATIENCE)
    last = await begins_beside_the_last(host)
    container = await asking(host)
    pause = asyncio.create_task(host.command("pause", container, free_memory=True))
    live = host.up.broker.live_containers[str(container.pk)]
    await host.eventually(lambda: live.swap)
    for _ in range(20):
        await asks(host, container)
    assert not pause.done()
    os.close(last)
    assert (await pause).outcome == "done"
    await host.command("resume", container)
    await is_back(host, container)
