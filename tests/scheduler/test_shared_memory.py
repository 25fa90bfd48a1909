"""Memory that is shared between processes or GPUs is not moved: the driver takes it out, and cannot bring it back."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from scheduler.containers import moving, swapping
from scheduler.containers.moving import Mover, why_it_stays
from scheduler.core.state import Stage
from scheduler.engines.base import Condition, EngineError, Status
from scheduler.sessions.live_containers import LiveContainer
from shim.binding import Sharing
from tests.support.eventually import PATIENCE, eventually
from tests.support.host import BUILD, GIB, Host, a_host, host, query
from tests.support.swapped import HOLDER, at_once, holder
from web.models import Container, Swap
from web.services.attention import Kind
from web.services.attention.containers import items

__all__ = ["host"]


# What one does beside holding memory.
SHARES = {
    "peer": """
other = c_void_p()
cuda("cuDevicePrimaryCtxRetain", byref(other), 1)
cuda("cuCtxEnablePeerAccess", other, 0)
""",
    "exported": """
import struct
properties = struct.pack("iiiiP8x", 1, 1, 1, 0, 0)
handle, fd = c_uint64(), c_int()
cuda("cuMemCreate", byref(handle), c_size_t(2 * MIB), properties, c_uint64(0))
cuda("cuMemExportToShareableHandle", byref(fd), handle, 1, c_uint64(0))
""",
    "ipc": """
cuda("cuIpcGetMemHandle", create_string_buffer(64), c_uint64(cuda.alloc(2 * MIB)))
""",
}
WORDS = {"peer": "peer access", "exported": "exported handles", "ipc": "CUDA IPC"}
EACH = pytest.mark.parametrize("how", SHARES)


@pytest.fixture
async def lab(transactional_db: None, settings: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Host]:
    """A host with two GPUs of 5 GiB, on which everybody is idle a second after the start, and has had its time."""
    settings.GPUSHARE_IDLE_MINUTES = settings.GPUSHARE_ROTATE_AFTER = 0.02
    settings.GPUSHARE_GIVE_WAY = "rotate"
    async with a_host(settings, tmp_path_factory.mktemp("host"), gpus="sim:2x5GiB") as host:
        yield host


async def sharer(host: Host, how: str, *, before: str = "", **fields: object) -> Container:
    """`before`: a fork that its program begins with."""
    at_once()
    code = "import os\n" + before + HOLDER.replace('print("holding"', f'{SHARES[how]}\nprint("holding"', 1)
    words = (sys.executable, "-c", code, str(GIB), str(host.home / "go-on"))
    environment, processes = {"PYTHONPATH": str(BUILD.parent)}, 2 if before else 1
    quota = processes * (GIB + GIB // 2)
    container = await host.launch(*words, gpu_memory=quota, gpu_count=2, environment=environment, **fields)
    await eventually(lambda: host.log(container).count("holding") == processes)
    return container


async def goes_on(host: Host, container: Container) -> None:
    assert host.up.broker.live_containers[str(container.pk)].swap == ""
    (host.home / "go-on").touch()
    await host.until(container, "exited", 60)
    assert "every byte is right" in host.log(container)


async def is_said(host: Host, container: Container, words: str) -> None:
    """On its page and in REST."""

    async def there() -> bool:
        return words in (await host.get(container)).cannot_move

    while not await there():
        await host.up.measure.once()
        await host.up.store.flush()


@pytest.mark.parametrize(("ended", "stays"), [(False, "Process 7 shares memory"), (True, "")])
def test_a_process_that_has_ended_shares_nothing_any_more(ended: bool, stays: str) -> None:
    session = SimpleNamespace(pid=7, ended=ended, page=SimpleNamespace(shared=Sharing.IPC))
    live = SimpleNamespace(sessions={1: session}, gates={})
    assert why_it_stays(cast(LiveContainer, live))[:23] == stays


@EACH
async def test_a_pause_does_not_free_shared_memory_and_says_why(lab: Host, how: str) -> None:
    container = await sharer(lab, how)
    answer = await lab.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "cannot_swap", 409)
    assert f"another process or GPU, or with the host ({WORDS[how]})" in answer.message
    assert "cannot bring such memory back" in answer.message
    await is_said(lab, container, WORDS[how])
    assert (await lab.get(container)).state == "running"
    await goes_on(lab, container)


@EACH
async def test_it_does_not_give_way_and_another_does(lab: Host, how: str) -> None:
    """Neither idle nor by rotation."""
    stays = await sharer(lab, how)
    await is_said(lab, stays, WORDS[how])
    words = ("workload", "--bytes", "3GiB", "--check", "1MiB", "--hold", "600")
    goes = await lab.launch(*words, gpu_memory=3 * GIB + GIB // 4, gpu_count=2, name="goes")
    await lab.says(goes, "holding")
    waits, _ = await lab.start_launch(*words, gpu_memory=3 * GIB + GIB // 4, gpu_count=2, name="waits")
    await lab.says(waits, "holding")
    assert (await lab.get(goes)).state == "swapped"
    assert not await lab.events(stays, "swapped_out", "not_moved")
    await goes_on(lab, stays)


async def test_the_next_scheduler_knows_it_from_the_lease_page(lab: Host) -> None:
    container = await sharer(lab, "peer")
    await lab.stop()
    await query(Container.objects.filter(pk=container.pk).update, cannot_move="")
    await lab.start()
    answer = await lab.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "cannot_swap")
    await is_said(lab, container, "peer access")
    assert not lab.up.broker.state.containers[str(container.pk)].movable
    await goes_on(lab, container)


async def test_when_the_process_that_shares_has_ended_the_container_can_be_moved(lab: Host) -> None:
    at_once()
    ends = HOLDER.replace('print("holding"', f"{SHARES['peer']}\nprint('shares', flush=True); sys.exit() #", 1)
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ends!r}, *sys.argv[1:]])\n{HOLDER}"
    words = (sys.executable, "-c", code, str(GIB), str(lab.home / "go-on"))
    environment = {"PYTHONPATH": str(BUILD.parent)}
    container = await lab.launch(*words, gpu_memory=4 * GIB, gpu_count=2, environment=environment)
    await lab.says(container, "holding")
    assert "shares" in lab.log(container)
    assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
    assert (await lab.command("resume", container)).outcome == "done"
    await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].swap == "")
    await goes_on(lab, container)


async def test_what_is_shared_while_it_is_being_stopped_stays(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await holder(host)
    stop = host.up.swapping._mover.stop

    async def stops(live: Any, sessions: Any) -> None:
        await stop(live, sessions)
        sessions[0].page.share(Sharing.EXPORTED)

    monkeypatch.setattr(host.up.swapping._mover, "stop", stops)
    answer = await host.command("pause", container, free_memory=True)
    assert (answer.outcome, answer.code) == ("refused", "cannot_swap")
    assert "exported handles" in answer.message
    await goes_on(host, container)


# ---- a restore that the driver refuses ----


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a program from before the shim noted it: the scheduler does not know that memory is shared."""
    for module in (swapping, moving):
        monkeypatch.setattr(module, "why_it_stays", lambda live: "")


async def is_lost(host: Host, container: Container) -> Container:
    """It is said at once that it does not come back; and nothing waits for that."""
    await eventually(lambda: host.up.broker.live_containers[str(container.pk)].not_restored)
    await eventually(lambda: host.up.broker.live_containers[str(container.pk)].is_out)
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


async def test_a_restore_that_the_driver_refuses_is_told_at_once(lab: Host, unknown: None) -> None:
    container = await sharer(lab, "exported")
    assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
    assert (await lab.command("resume", container)).outcome == "done"
    found = await is_lost(lab, container)
    assert found.swapped > GIB
    # Its place on the cards is free for others.
    other = await lab.launch("workload", "--bytes", "4GiB", "--hold", "600", gpu_memory=5 * GIB, gpu_count=2)
    await lab.says(other, "holding")
    await lab.command("kill", other)
    # The next scheduler does not try it again either; a person may.
    await lab.stop()
    await lab.start()
    await is_lost(lab, container)
    answer = await lab.command("resume", container)
    assert "brought back once more" in answer.message
    await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].not_restored)
    await lab.up.store.flush()
    assert len(await lab.events(container, "not_restored")) == 2
    assert (await lab.command("kill", container)).outcome == "done"
    assert (await lab.until(container, "killed")).not_restored == ""


def fails_when_out(host: Host) -> Callable[[Any], Awaitable[None]]:
    out = host.up.swapping._mover.out

    async def out_and_fails(session: Any) -> None:
        await out(session)
        raise RuntimeError("after its memory is out")

    return out_and_fails


async def test_so_it_is_when_a_move_is_undone(lab: Host, unknown: None, monkeypatch: pytest.MonkeyPatch) -> None:
    container = await sharer(lab, "exported")

    monkeypatch.setattr(lab.up.swapping._mover, "out", fails_when_out(lab))
    answer = await lab.command("pause", container, free_memory=True)
    assert answer.outcome == "refused"
    await is_lost(lab, container)


@pytest.mark.parametrize("moment", ["resume", "undo"])
async def test_the_next_scheduler_frees_the_cards_where_a_kill_came_before_that(
    lab: Host, unknown: None, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The kill comes while the driver is asked whether all of it is out; that it does not come back is written."""
    container = await sharer(lab, "exported")
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
        await asyncio.wait_for(asked.wait(), PATIENCE)
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
    lab: Host, unknown: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "AGAIN", 0.05)
    container = await sharer(lab, "exported")
    live, broker, are_out = lab.up.broker.live_containers[str(container.pk)], lab.up.broker, Mover.are_out
    with monkeypatch.context() as patched:
        patched.setattr(Mover, "are_out", AsyncMock(return_value=False))  # the driver does not answer
        assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
        assert (await lab.command("resume", container)).outcome == "done"
        await eventually(lambda: live.not_restored and not lab.up.swapping._under_way)
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
    await eventually(lambda: live.is_out)
    assert unseen == [set()]


async def test_a_person_can_resume_it_while_the_driver_is_asked(
    lab: Host, unknown: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again then."""
    container = await sharer(lab, "exported")
    live = lab.up.broker.live_containers[str(container.pk)]
    asked, answers, are_out = asyncio.Event(), asyncio.Event(), Mover.are_out

    async def asks(self: Mover, sessions: Any) -> bool:
        asked.set()
        await answers.wait()
        return await are_out(self, sessions)

    monkeypatch.setattr(Mover, "are_out", asks)
    assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
    assert (await lab.command("resume", container)).outcome == "done"
    await asyncio.wait_for(asked.wait(), PATIENCE)
    assert (await lab.command("resume", container)).outcome == "done"
    assert not live.not_restored
    answers.set()
    await eventually(lambda: live.not_restored)
    await lab.up.store.flush()
    assert len(await lab.events(container, "not_restored")) == 2


@pytest.mark.parametrize("others", [0, 1])
async def test_so_it_is_of_a_process_found_after_the_rest_was_brought_back(
    lab: Host, unknown: None, others: int
) -> None:
    """By its row the container is on its GPUs. With others of its processes running there, it stays so."""
    container = await sharer(lab, "exported", before="os.fork()\n" * others)
    live = lab.up.broker.live_containers[str(container.pk)]
    late = next(iter(live.sessions.values()))
    await lab.up.swapping._card.lock(late.pid, PATIENCE)
    await lab.up.swapping._card.checkpoint(late.pid, PATIENCE)
    lab.up.swapping.found_late(live, late)
    if not others:
        await is_lost(lab, container)
        return
    await eventually(lambda: live.not_restored and not lab.up.swapping._under_way)
    assert (live.swap, lab.up.broker.state.containers[live.id].paused) == ("", True)
    await lab.stop()
    await lab.start()  # where a person can have it tried again, too
    assert (await lab.command("resume", container)).outcome == "done"
    await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].not_restored)
    await lab.up.store.flush()
    assert len(await lab.events(container, "not_restored")) == 2


async def test_a_container_that_lost_its_memory_counts_as_paused_until_a_person_resumes_it(
    lab: Host, unknown: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is done to it: else the safety check takes for granted that it frees what it holds."""
    container = await sharer(lab, "exported")
    assert (await lab.command("pause", container, free_memory=True)).outcome == "done"
    assert (await lab.command("resume", container)).outcome == "done"
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
    await eventually(lambda: live.not_restored and live.is_out)  # it was tried again
    await lab.up.store.flush()
    assert len(await lab.events(container, "not_restored")) == 2
