"""Memory that is shared between processes or GPUs is not moved: the driver takes it out, and cannot bring it back.

How the shim notes that it is shared: tests/shim/test_shared_memory.py.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from scheduler.containers.moving import Mover, why_it_stays
from scheduler.core.state import Stage
from scheduler.engines.base import Condition, EngineError, Status
from scheduler.sessions.live_containers import LiveContainer
from shim.binding import Sharing
from tests.support.host import GIB, query
from tests.support.inprocess.host import PATIENCE, InProcess, a_host_inside
from tests.support.inprocess.memory import ends_well, is_back, notebook
from tests.support.inprocess.programs import notebook as a_notebook
from web.models import Container, Swap
from web.services.attention import Kind
from web.services.attention.containers import items

QUOTA = 3 * GIB + GIB // 4


@pytest.fixture
async def lab(virtual_time: None, database: None, settings: Any) -> AsyncIterator[InProcess]:
    """A host with two GPUs of 5 GiB, on which everybody is idle a second after the start, and has had its time."""
    settings.GPUSHARE_IDLE_MINUTES = settings.GPUSHARE_ROTATE_AFTER = 0.02
    settings.GPUSHARE_GIVE_WAY = "rotate"
    async with a_host_inside(settings, gpus="sim:2x5GiB") as host:
        yield host


async def holder(host: InProcess) -> Container:
    return await notebook(host, GIB, 3 * GIB // 2, gpu_count=2)


async def sharer(host: InProcess, how: Sharing = Sharing.PEER) -> Container:
    container = await holder(host)
    page = host.process(container).page
    assert page is not None
    page.share(how)
    return container


async def goes_on(host: InProcess, container: Container) -> None:
    assert host.up.broker.live_containers[str(container.pk)].swap == ""
    await ends_well(host, container)


async def is_said(host: InProcess, container: Container, words: str) -> None:
    """On its page and in REST."""
    await host.settle()
    assert words in (await host.get(container)).cannot_move


async def is_refused(host: InProcess, container: Container, words: str) -> None:
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "cannot_swap", 409)
    assert f"another process or GPU, or with the host ({words})" in answer.message
    assert "cannot bring such memory back" in answer.message


@pytest.mark.parametrize(("ended", "stays"), [(False, "Process 7 shares memory"), (True, "")])
def test_a_process_that_has_ended_shares_nothing_any_more(ended: bool, stays: str) -> None:
    session = SimpleNamespace(pid=7, ended=ended, page=SimpleNamespace(shared=Sharing.IPC))
    live = SimpleNamespace(sessions={1: session}, gates={})
    assert why_it_stays(cast(LiveContainer, live))[:23] == stays


async def test_a_pause_does_not_free_shared_memory_and_says_why_also_under_the_next_scheduler(lab: InProcess) -> None:
    """That one knows it from the lease page."""
    container = await sharer(lab)
    await is_refused(lab, container, "peer access")
    await is_said(lab, container, "peer access")
    await lab.stop()
    await query(Container.objects.filter(pk=container.pk).update, cannot_move="")
    await lab.start()
    await is_refused(lab, container, "peer access")
    await is_said(lab, container, "peer access")
    assert not lab.up.broker.state.containers[str(container.pk)].movable
    assert (await lab.get(container)).state == "running"
    await goes_on(lab, container)


async def test_it_does_not_give_way_and_another_does(lab: InProcess) -> None:
    """Neither idle nor by rotation."""
    stays = await sharer(lab, Sharing.EXPORTED)
    await is_said(lab, stays, "exported handles")
    words = ("workload", "--bytes", "3GiB", "--hold", "600")
    goes = await lab.launch(*words, gpu_memory=QUOTA, gpu_count=2, name="goes")
    await lab.says(goes, "holding")
    waits, _ = await lab.start_launch(*words, gpu_memory=QUOTA, gpu_count=2, name="waits")
    await lab.says(waits, "holding")
    assert (await lab.get(goes)).state == "swapped"
    assert not await lab.events(stays, "swapped_out", "not_moved")
    await goes_on(lab, stays)


async def test_when_the_process_that_shares_has_ended_the_container_can_be_moved(lab: InProcess) -> None:
    container = await holder(lab)
    other = lab.process(container).fork(a_notebook, "1")
    await lab.eventually(lambda: other.page)
    assert other.page is not None
    other.page.share(Sharing.IPC)
    await is_refused(lab, container, "CUDA IPC")
    lab.engine.kill_process(other.pid)
    await lab.settle()
    assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
    assert (await lab.command("resume", container)).outcome == "done"
    await is_back(lab, container)
    await goes_on(lab, container)


async def test_what_is_shared_while_it_is_being_stopped_stays(lab: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await holder(lab)
    stop = lab.up.swapping._mover.stop

    async def stops(live: Any, sessions: Any) -> None:
        await stop(live, sessions)
        sessions[0].page.share(Sharing.EXPORTED)

    monkeypatch.setattr(lab.up.swapping._mover, "stop", stops)
    await is_refused(lab, container, "exported handles")
    await goes_on(lab, container)


# ---- a restore that the driver refuses ----


@pytest.fixture
def refused(lab: InProcess) -> None:
    """As with a program from before the shim noted it: the scheduler does not know that memory is shared."""
    lab.driver.refuses["restore"] = 801


async def moved(host: InProcess) -> Container:
    """Out, and then asked back."""
    container = await holder(host)
    assert (await host.command("pause", container, free_memory=True)).outcome == "done"
    assert (await host.command("resume", container)).outcome == "done"
    return container


async def not_restored(host: InProcess, container: Container) -> int:
    """How often that was reported, once it was again."""
    await host.eventually(lambda: host.up.broker.live_containers[str(container.pk)].not_restored)
    await host.up.store.flush()
    return len(await host.events(container, "not_restored"))


async def is_lost(host: InProcess, container: Container) -> Container:
    """It is said at once that it does not come back; and nothing waits for that."""
    await host.eventually(lambda: host.up.broker.live_containers[str(container.pk)].not_restored)
    await host.eventually(lambda: host.up.broker.live_containers[str(container.pk)].is_out)
    await host.up.store.flush()
    (event,) = await host.events(container, "not_restored")
    found = await host.get(container)
    assert (found.state, found.swap, found.not_restored) == ("swapped", Swap.OUT, event.detail)
    assert "will not come back by itself" in found.not_restored
    (item,) = await query(lambda: [each for each in items(found.swapped_at) if each.kind is Kind.NOT_RESTORED])
    assert (item.container, item.acts) == (container, ("resume", "kill"))
    core = host.up.broker.state.containers[str(container.pk)]
    assert (core.stage, dict(core.leased)) == (Stage.OUT, {})
    return found


async def test_a_restore_that_the_driver_refuses_is_reported_at_once(lab: InProcess, refused: None) -> None:
    container = await moved(lab)
    found = await is_lost(lab, container)
    assert found.swapped > GIB
    # Its place on the cards is free for others.
    other = await lab.launch("workload", "--bytes", "4GiB", "--hold", "600", gpu_memory=5 * GIB, gpu_count=2)
    await lab.says(other, "holding")
    await lab.command("kill", other)
    # The next scheduler does not try it again either; a person may.
    await lab.restart()
    await is_lost(lab, container)
    answer = await lab.command("resume", container)
    assert "brought back once more" in answer.message
    assert await not_restored(lab, container) == 2
    assert (await lab.command("kill", container)).outcome == "done"
    assert (await lab.until(container, "killed")).not_restored == ""


def fails_when_out(host: InProcess) -> Callable[[Any], Awaitable[None]]:
    out = host.up.swapping._mover.out

    async def out_and_fails(session: Any) -> None:
        await out(session)
        raise RuntimeError("after its memory is out")

    return out_and_fails


async def test_so_it_is_when_a_move_is_undone(lab: InProcess, refused: None, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await holder(lab)

    monkeypatch.setattr(lab.up.swapping._mover, "out", fails_when_out(lab))
    answer = await lab.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    await is_lost(lab, container)


@pytest.mark.parametrize("moment", ["resume", "undo"])
async def test_the_next_scheduler_frees_the_cards_where_a_kill_came_before_that(
    lab: InProcess, refused: None, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The kill comes while the driver is asked whether all of it is out; that it does not come back is written."""
    container = await holder(lab)
    asked = asyncio.Event()

    async def asks_for_ever(self: Mover, sessions: Any) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return False

    with monkeypatch.context() as patched:
        patched.setattr(Mover, "are_out", asks_for_ever)
        if moment == "resume":
            assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
            assert (await lab.command("resume", container)).outcome == "done"
        else:
            patched.setattr(lab.up.swapping._mover, "out", fails_when_out(lab))
            pausing = asyncio.create_task(lab.command("pause", container, free_memory=True))
        await lab.eventually(asked.is_set)
        await lab.up.store.durable()
        found = await lab.get(container)
        assert found.swap == (Swap.COMING if moment == "resume" else Swap.LEAVING)
        assert found.not_restored
        await lab.stop()
    await lab.start()
    if moment == "undo":
        await pausing
    await is_lost(lab, container)
    # Its place on the cards is free for others.
    other = await lab.launch("workload", "--bytes", "4GiB", "--hold", "600", gpu_memory=5 * GIB, gpu_count=2)
    await lab.says(other, "holding")


async def test_the_cards_are_not_freed_before_all_processes_were_looked_at(
    lab: InProcess, refused: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = await holder(lab)
    live, broker, are_out = lab.up.broker.live_containers[str(container.pk)], lab.up.broker, Mover.are_out
    with monkeypatch.context() as patched:
        patched.setattr(Mover, "are_out", AsyncMock(return_value=False))  # the driver does not answer
        assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
        assert (await lab.command("resume", container)).outcome == "done"
        await lab.eventually(lambda: live.not_restored and not lab.up.swapping._under_way)
        assert live.swap == Swap.COMING
    await lab.up.store.flush()
    assert len(await lab.events(container, "not_restored")) == 1  # once it has failed, it is not tried again
    unseen: list[set[int]] = []  # whenever the driver is asked

    async def asks(self: Mover, sessions: Any) -> bool:
        unseen.append(set(broker.unseen))
        return await are_out(self, sessions)

    monkeypatch.setattr(Mover, "are_out", asks)
    broker.unseen.add(1 << 22)  # the highest pid there is, and one more
    await lab.up.swapping.go_on()
    await lab.up.store.flush()
    broker.unseen.clear()
    await lab.eventually(lambda: live.is_out)
    assert unseen == [set()]


async def test_a_person_can_resume_it_while_the_driver_is_asked(
    lab: InProcess, refused: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again then."""
    container = await holder(lab)
    live = lab.up.broker.live_containers[str(container.pk)]
    asked, answers, are_out = asyncio.Event(), asyncio.Event(), Mover.are_out

    async def asks(self: Mover, sessions: Any) -> bool:
        asked.set()
        await answers.wait()
        return await are_out(self, sessions)

    monkeypatch.setattr(Mover, "are_out", asks)
    assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
    assert (await lab.command("resume", container)).outcome == "done"
    await lab.eventually(asked.is_set)
    assert (await lab.command("resume", container)).outcome == "done"
    assert not live.not_restored
    answers.set()
    assert await not_restored(lab, container) == 2


@pytest.mark.parametrize("others", [0, 1])
async def test_so_it_is_of_a_process_found_after_the_rest_was_brought_back(
    lab: InProcess, refused: None, others: int
) -> None:
    """By its row the container is on its GPUs. With others of its processes running there, it stays so."""
    container = await holder(lab)
    for _ in range(others):
        another = lab.process(container).fork(a_notebook, "1")
        await lab.eventually(lambda: another.pid in lab.driver.states)  # noqa: B023 - awaited here
    live = lab.up.broker.live_containers[str(container.pk)]
    late = next(iter(live.sessions.values()))
    await lab.up.swapping._card.lock(late.pid, PATIENCE)
    await lab.up.swapping._card.checkpoint(late.pid, PATIENCE)
    lab.up.swapping.found_late(live, late)
    if not others:
        await is_lost(lab, container)
        return
    await lab.eventually(lambda: live.not_restored and not lab.up.swapping._under_way)
    assert (live.swap, lab.up.broker.state.containers[live.id].paused) == ("", True)
    await lab.restart()  # where a person can have it tried again, too
    assert (await lab.command("resume", container)).outcome == "done"
    assert await not_restored(lab, container) == 2


async def test_a_container_that_lost_its_memory_counts_as_paused_until_a_person_resumes_it(
    lab: InProcess, refused: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is done to it: else the safety check takes for granted that it frees what it holds."""
    container = await moved(lab)
    await is_lost(lab, container)
    live = lab.up.broker.live_containers[str(container.pk)]

    def core() -> Any:
        return lab.up.broker.state.containers[live.id]

    assert core().paused
    # A `docker pause` and a `docker unpause`.
    lab.up.containers.seen(Status(live.id, live.engine_id, Condition.PAUSED))
    lab.up.containers.seen(Status(live.id, live.engine_id, Condition.RUNNING))
    assert not live.paused
    assert core().paused

    async def fails(engine_id: str) -> None:
        raise EngineError("It cannot be frozen.")

    with monkeypatch.context() as patched:
        patched.setattr(lab.up.engine, "pause", fails)
        assert (await lab.command("pause", container)).outcome != "done"
    assert core().paused
    assert (await lab.command("resume", container)).outcome == "done"
    await lab.eventually(lambda: live.not_restored and live.is_out)  # it was tried again
    await lab.up.store.flush()
    assert len(await lab.events(container, "not_restored")) == 2
