"""Who runs again may ask its card, whatever became of its container, of its others, and of the scheduler.

With a real program that asks in a loop: test_swapping_processes.py.
"""

import os

import pytest

from scheduler.containers.moving import ASKED_WITHIN, GRACE, LOCK_SECONDS
from tests.support.host import GIB
from tests.support.inprocess.host import PATIENCE, InProcess
from tests.support.inprocess.memory import asking, asks, ends_well, is_back, notebook
from tests.support.inprocess.programs import workload
from web.models import Swap

MANY = 16


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("moment", [Swap.LEAVING, Swap.COMING])
async def test_who_is_killed_while_it_is_moved_can_save_in_its_grace_what_it_has_on_its_card(
    host: InProcess, moment: Swap, restarted: bool
) -> None:
    """Also under the next scheduler."""
    container = await asking(host)
    if moment is Swap.COMING:
        assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    live = host.up.broker.live_containers[str(container.pk)]
    host.driver.takes.update(checkpoint=25.0, restore=25.0)
    await host.ask("resume" if moment is Swap.COMING else "pause", container, free_memory=True)
    await host.eventually(lambda: live.swap == moment)
    await host.ask("kill", container, grace=PATIENCE)
    await host.eventually(lambda: live.killed)
    if restarted:
        await host.stop()
        assert (await host.get(container)).swap == moment
        await host.start()
    await host.until(container, "killed")
    assert "saved" in host.log(container)


async def test_of_several_processes_one_that_goes_on_asks_though_another_is_not_back_yet(host: InProcess) -> None:
    """The move was undone, but for one that is stopped by a debugger, say: for as long as it is."""
    container = await asking(host, 2)
    first, second = host.processes(container)
    second.freeze()
    assert (await host.command("pause", container, free_memory=True)).outcome == "refused"
    await asks(host, container, first)
    second.freeze(False)
    await asks(host, container, second)


# ---- what it costs others ----


async def test_the_processes_of_a_container_are_waited_for_together(host: InProcess) -> None:
    """Of those that are done soon not all may be; who says for ever that it asks is believed for a second."""
    many = await notebook(host, GIB, 3 * GIB)
    for _ in range(1, MANY):
        host.process(many).fork(workload, "--bytes", "4MiB", "--compute", "600")
    live, begun = host.up.broker.live_containers[str(many.pk)], host.loop.time()
    await host.eventually(lambda: len(live.sessions) == MANY)
    host.driver.takes["lock"] = 4.0
    answer = await host.command("pause", many, free_memory=True)
    assert (answer.outcome, "did not end in time" in answer.message) == ("refused", True)
    assert host.loop.time() - begun < 2 * LOCK_SECONDS
    assert not live.swap
    had = host.had(many)
    await host.eventually(lambda: host.had(many) > had)
    host.driver.takes["lock"], begun = 0.0, host.loop.time()
    for session in live.sessions.values():
        os.pwrite(session.page.fileno(), b"\1\0\0\0", 64)  # as each of them can
    assert (await host.command("pause", many, free_memory=True)).outcome == "done"
    assert host.loop.time() - begun < 3 * ASKED_WITHIN


async def test_whoever_else_is_moved_does_not_wait_for_one_that_stands_still_on_its_way_back(host: InProcess) -> None:
    """A restore is not broken off."""
    still, other = [await notebook(host, GIB, quota=2 * GIB) for _ in range(2)]
    assert (await host.command("pause", still, free_memory=True)).outcome == "done"
    async with host.up.swapping._transfer:
        await host.command("resume", still)
        host.process(still).freeze()
    await host.eventually(lambda: ("restore", host.process(still).pid) in host.driver.asked)
    begun = host.loop.time()
    assert (await host.command("pause", other, free_memory=True)).outcome == "done"
    assert host.loop.time() - begun < GRACE / 2
    await host.command("resume", other)
    await is_back(host, other)
    assert host.up.broker.live_containers[str(still.pk)].swap == Swap.COMING
    host.process(still).freeze(False)
    await is_back(host, still)
    await ends_well(host, still)
    await ends_well(host, other)
