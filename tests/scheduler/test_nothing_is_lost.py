"""A scheduler that is killed between any two steps: what was meant goes on, and what the engine alone knew is kept."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from scheduler.engines import host_memory, kernel_log
from scheduler.store import write_behind
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from web.models import Container

HOLD = ("--hold", "600")


async def test_container_whose_start_was_not_written_is_taken_over_with_its_memory(host: InProcess) -> None:
    host.writes_no_more()
    container, launch = await host.start_launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=2 * GIB)
    await host.says(container, "holding")
    await host.stop()
    assert (await host.get(container)).started_at is None
    await host.start()
    live = host.up.broker.live_containers[str(container.pk)]
    assert [live.used(gpu) >= GIB for gpu in live.quota] == [True]
    assert (await host.answer(launch)).outcome == "done"
    assert host.up.broker.live_containers[str(container.pk)] is live
    assert [event.kind for event in await host.events(container, "started", "ended")] == ["started"]


async def test_container_that_ended_before_its_start_was_written_is_not_started_again(host: InProcess) -> None:
    host.writes_no_more()
    container, launch = await host.start_launch("sh", "-c", "echo ran; exit 7")
    await host.eventually(lambda: "ran" in host.log(container))
    await host.restart()
    assert (await host.answer(launch)).outcome == "done"
    ended = await host.until(container, "failed")
    assert (ended.exit_code, host.log(container)) == (7, "ran\n")
    assert [event.kind for event in await host.events(container, "started", "ended")] == ["started", "ended"]


async def test_kill_is_written_before_it_is_done(host: InProcess, monkeypatch) -> None:
    container = await host.launch("sleep", "600")
    kill, written = host.engine.kill, []

    async def looked(engine_id: str, **options: Any) -> None:
        written.append(await host.get(container))
        await kill(engine_id, **options)

    monkeypatch.setattr(host.engine, "kill", looked)
    assert (await host.command("kill", container)).outcome == "done"
    (row,) = written
    assert row.kill_requested_at is not None
    assert row.reason == "Killed by the appliance."


async def test_nobody_is_refused_before_the_kill_is_written(host: InProcess, monkeypatch) -> None:
    """A program that is refused ends of it: a storm found one that had "failed", as its time was over."""
    go = host.home / "go"
    wait = f"while [ ! -e {go} ]; do sleep 0.02; done; exec workload --bytes 1GiB --hold 600"
    container = await host.launch("sh", "-c", wait, gpu_memory=2 * GIB)
    writes = asyncio.Event()
    monkeypatch.setattr(host.up.store, "durable", writes.wait)
    host.writes_no_more()
    host.up.ender.want(host.up.broker.live_containers[str(container.pk)], reason="Its time is up.")
    go.touch()
    await host.says(container, "holding")
    await host.restart()
    assert (await host.get(container)).finished_at is None
    assert (await host.command("kill", container)).outcome == "done"


async def test_launch_that_is_called_off_keeps_its_socket_until_that_is_written(host: InProcess, monkeypatch) -> None:
    """Its program ended for want of it, and under the next scheduler it had failed, and the kill was refused."""
    launch, go = host.engine.launch, host.home / "go"
    tried = asyncio.Event()

    async def late(*arguments: Any) -> None:
        await launch(*arguments)
        await asyncio.Event().wait()

    async def full() -> None:
        tried.set()
        raise OperationalError("database or disk is full")

    monkeypatch.setattr(host.up.containers, "apply_status", lambda status: None)
    monkeypatch.setattr(host.engine, "launch", late)
    program = "exec workload --bytes 1GiB --hold 600"
    words = f"echo began; while [ ! -e {go} ]; do sleep 0.02; done; {program}"
    container, _ = await host.start_launch("sh", "-c", words, gpu_memory=2 * GIB)
    await host.says(container, "began")
    host.writes_no_more()
    monkeypatch.setattr(host.up.store, "durable", full)
    killing = await host.ask("kill", container)
    await host.eventually(tried.is_set)
    go.touch()
    await host.says(container, "holding")
    await host.stop()
    monkeypatch.undo()
    await host.start()
    assert (await host.answer(killing)).outcome == "done"
    assert (await host.until(container, "killed")).reason == "Killed by the appliance."


async def test_kill_that_is_cut_off_after_it_acted_is_reported_as_done_with_its_reason(
    host: InProcess, monkeypatch
) -> None:
    container = await host.launch("sleep", "600")
    kill, acted = host.engine.kill, asyncio.Event()

    async def cut_off(engine_id: str, **options: Any) -> None:
        host.writes_no_more()
        await kill(engine_id, **options)
        acted.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(host.engine, "kill", cut_off)
    command = await host.ask("kill", container)
    await host.eventually(acted.is_set)
    monkeypatch.undo()
    await host.restart()
    answer = await host.answer(command)
    assert (answer.outcome, answer.message) == ("done", "The container has ended.")
    row = await host.until(container, "killed")
    assert (row.reason, row.exit_code) == ("Killed by the appliance.", 137)
    assert [event.kind for event in await host.events(container, "killed", "ended")] == ["killed", "ended"]


async def test_kill_that_failed_goes_on_under_the_next_scheduler(host: InProcess, monkeypatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise OSError("no descriptors are left")

    container = await host.launch("sleep", "600")
    monkeypatch.setattr(host.engine, "kill", fails)
    assert (await host.command("kill", container)).outcome == "refused"
    monkeypatch.undo()
    await host.restart()
    assert (await host.until(container, "killed")).reason == "Killed by the appliance."


async def test_kill_that_fails_by_whatever_it_may_be_is_tried_again(host: InProcess, monkeypatch) -> None:
    container = await host.launch("sleep", "600")
    kill, failures = host.engine.kill, iter([OSError("no descriptors are left"), RuntimeError("a fault of ours")])

    async def fails_twice(engine_id: str, **options: Any) -> None:
        for failure in failures:
            raise failure
        await kill(engine_id, **options)

    monkeypatch.setattr(host.engine, "kill", fails_twice)
    assert (await host.command("kill", container)).code == "host_short"
    await host.until(container, "killed")


async def test_kill_waits_until_the_database_has_taken_it(host: InProcess, monkeypatch) -> None:
    container = await host.launch("sleep", "600")
    live, refusals = host.up.broker.live_containers[str(container.pk)], []

    def full(*_: object) -> None:
        refusals.append(...)
        raise OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(write_behind, "write_batch", full)
        host.up.ender.want(live, reason="Its time is up.")
        await host.eventually(lambda: len(refusals) > 5)
        assert not live.finished
    assert (await host.until(container, "killed")).reason == "Its time is up."


async def test_exit_code_is_in_the_database_before_its_only_evidence_is_removed(host: InProcess, monkeypatch) -> None:
    remove, known = host.engine.remove, []

    async def looked(engine_id: str) -> None:
        known.append((await query(Container.objects.get, engine_id=engine_id)).exit_code)
        await remove(engine_id)

    monkeypatch.setattr(host.engine, "remove", looked)
    await host.start_launch("sh", "-c", "exit 7", remove_when_done=True)
    await host.eventually(lambda: known)
    assert known == [7]


@pytest.mark.parametrize(
    ("kills", "said"),
    [(0, "It was ended by a SIGKILL that this appliance did not send."), (1, "lack of host memory")],
)
async def test_sigkill_that_nobody_here_sent_says_what_is_known_of_it(
    host: InProcess, tmp_path: Path, monkeypatch, kills: int, said: str
) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("oom_kill 0\n")
    monkeypatch.setattr(host_memory, "VMSTAT", vmstat)
    monkeypatch.setattr(kernel_log, "_syslog", lambda *_: -1)  # as where nobody may read it
    host.up.memory.look()
    container = await host.launch("sleep", "600")
    vmstat.write_text(f"oom_kill {kills}\n")
    await host.engine.kill(container.engine_id)  # behind our back
    ended = await host.until(container, "failed")
    assert ended.exit_code == 137
    assert said in ended.reason


async def test_death_between_two_batches_tells_no_end_twice(host: InProcess, monkeypatch) -> None:
    """A long backlog is written in parts, the events before the rows: the next scheduler found it ended once more."""
    monkeypatch.setattr(write_behind, "BATCH", 1)
    write = write_behind.write_batch

    def dies_after_the_end(*arguments: Any) -> None:
        if reported:
            raise OperationalError("it was killed")
        reported.extend(each for each in arguments[1] if each.event.kind == "ended")
        write(*arguments)

    reported: list[Any] = []
    go = host.home / "go"
    container = await host.launch("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.02; done")
    async with host.up.store._flushing:
        monkeypatch.setattr(write_behind, "write_batch", dies_after_the_end)
        go.touch()
        await host.eventually(lambda: host.up.broker.live_containers.get(str(container.pk)) is None)
        for _ in range(2):
            host.up.store.event("accepted", str(container.pk))
    await host.eventually(lambda: reported)
    host.writes_no_more()
    await host.stop()
    monkeypatch.undo()
    await host.start()
    await host.until(container, "exited")
    assert len(await host.events(container, "ended")) == 1
