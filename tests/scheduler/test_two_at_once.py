"""Two things at once: a look in the middle of an act, an end in the middle of a change, one act twice."""

import asyncio
import resource
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from scheduler.containers.launch import called_off
from scheduler.engines.base import EngineError, Launch, Status
from scheduler.store.promises import Promises
from tests.support.host import GIB, query
from tests.support.inprocess.host import PATIENCE, InProcess
from web.models import Claim, Command, Container


@pytest.mark.parametrize("cut_off", [False, True])
async def test_look_in_the_middle_of_a_kill_tells_of_no_pause(host: InProcess, monkeypatch, cut_off: bool) -> None:
    """The process engine stops a container before it ends it, so that nothing can fork its way out."""
    container = await host.launch("sleep", "600")
    kill, frozen = host.engine.kill, asyncio.Event()

    async def freezes(engine_id: str, **_: Any) -> None:
        await host.engine.pause(engine_id)
        frozen.set()
        await host.up.containers.reconcile()
        if cut_off:
            await asyncio.Event().wait()
        monkeypatch.undo()
        await kill(engine_id)

    monkeypatch.setattr(host.engine, "kill", freezes)
    host.up.ender.want(host.up.broker.live_containers[str(container.pk)], reason="Its time is up.")
    await host.eventually(frozen.is_set)
    if cut_off:
        monkeypatch.undo()
        await host.restart()
    assert (await host.until(container, "killed")).reason == "Its time is up."
    assert [event.kind for event in await host.events(container)] == ["started", "killed", "ended"]


async def test_program_that_ends_while_it_is_being_paused_was_not_paused(host: InProcess, monkeypatch) -> None:
    container = await host.launch("sleep", "600")
    pause = host.engine.pause

    async def too_late(engine_id: str) -> None:
        host.engine.kill_process(host.process(container).pid)
        await pause(engine_id)

    monkeypatch.setattr(host.engine, "pause", too_late)
    answer = await host.command("pause", container)
    assert (answer.outcome, answer.code) == ("refused", "not_running")
    await host.until(container, "failed")
    assert [event.kind for event in await host.events(container)] == ["started", "ended"]


async def test_container_that_ends_while_its_quota_is_written_is_not_changed(host: InProcess, monkeypatch) -> None:
    container = await host.launch("sleep", "600", gpu_memory=GIB)
    live, make = host.up.broker.live_containers[str(container.pk)], host.up.store.promises.make

    async def and_ended(*arguments: Any, **options: Any) -> None:
        await make(*arguments, **options)
        await host.engine.kill(container.engine_id)
        await host.eventually(lambda: live.finished)

    monkeypatch.setattr(host.up.store.promises, "make", and_ended)
    answer = await host.command("change", container, gpu_memory=2 * GIB)
    assert (answer.outcome, answer.code) == ("refused", "container_ended")
    await host.up.store.flush()
    assert (await host.claim(container)).quota == GIB
    # Killed past the scheduler it may be seen frozen for a moment, which is a pause like any other.
    kinds = [event.kind for event in await host.events(container) if event.kind != "paused"]
    assert kinds == ["started", "ended"]


async def test_change_that_was_cut_off_after_its_promise_tells_what_the_quota_was(host: InProcess) -> None:
    container = await host.launch("sleep", "600", gpu_memory=GIB)
    await host.stop()
    await query(Claim.objects.filter(container=container).update, quota=2 * GIB)
    change = await host.ask("change", container, gpu_memory=2 * GIB)
    await host.start()
    assert (await host.answer(change)).outcome == "done"
    (events,) = await host.events(container, "quota")
    assert events.detail == f"{GIB} to {2 * GIB} bytes"
    assert list(host.up.broker.live_containers[str(container.pk)].quota.values()) == [2 * GIB]


async def test_container_that_ends_while_it_is_marked_as_idle_was_not_idle_after_its_end(
    host: InProcess, monkeypatch
) -> None:
    container = await host.launch("sleep", "600")
    live = host.up.broker.live_containers[str(container.pk)]
    ask = host.up.store.ask

    async def slow(*arguments: Any) -> Any:
        answer = await ask(*arguments)
        await host.engine.kill(container.engine_id)
        await host.eventually(lambda: live.finished)
        return answer

    monkeypatch.setattr(host.up.store, "ask", slow)
    monkeypatch.setattr(settings, "GPUSHARE_IDLE_ACTION", "notify")
    await host.up.idle._mark(live, 1800.0)
    await host.up.store.flush()
    assert [event.kind for event in await host.events(container)] == ["started", "ended"]
    assert (await host.get(container)).idle_since is None


async def test_container_that_computes_again_before_its_pause_is_not_paused_as_idle(
    host: InProcess, monkeypatch
) -> None:
    """It was idle when it was looked at; the command waits in the database while it goes on."""
    monkeypatch.setattr(settings, "GPUSHARE_IDLE_ACTION", "pause")
    monkeypatch.setattr(settings, "GPUSHARE_IDLE_MINUTES", 30.0)
    load = [0.0]
    monkeypatch.setattr("scheduler.gpus.Reading.computed", lambda *_: load[0])
    container = await host.launch("workload", "--bytes", "1GiB", "--hold", "600", gpu_memory=2 * GIB)
    live = host.up.broker.live_containers[str(container.pk)]
    await host.eventually(lambda: any(live.used(gpu) for gpu in live.quota))
    real, looked = host.up.intents.pause, asyncio.Event()

    async def late(*asked: Any) -> None:
        load[0] = 90.0
        await host.up.idle.look(host.up.measure.readings)
        await real(*asked)
        looked.set()

    monkeypatch.setattr(host.up.intents, "pause", late)
    await host.up.idle._mark(live, 1800.0)
    assert looked.is_set()
    command = await query(Command.objects.get, kind="pause", container=container)
    answer = await host.answer(command)
    assert (answer.outcome, answer.code) == ("refused", "not_idle")
    now = await host.get(container)
    assert (now.state, now.idle_since) == ("running", None)
    assert await host.events(container, "idle") == []


async def test_socket_of_a_launch_that_is_under_way_is_not_taken_away_by_the_next_scheduler(host: InProcess) -> None:
    container = await host.launch("sleep", "600")
    await host.engine.kill(container.engine_id)
    await host.until(container, "failed")
    await host.stop()
    as_before = {"finished_at": None, "removed_at": None, "started_at": None, "exit_code": None, "engine_id": ""}
    await query(Container.objects.filter(pk=container.pk).update, **as_before)
    del host.engine.containers[str(container.pk)]
    folder = host.home / "sockets" / str(container.pk)
    folder.mkdir()
    await host.start()
    assert folder.exists()


async def test_launch_that_is_killed_after_its_start_was_reported_ends_once(host: InProcess, monkeypatch) -> None:
    """The engine can tell of it before the launch does: then its start is in the record, and so must be its end."""
    real, go_on = host.engine.launch, asyncio.Event()

    async def slow(launch: Launch, progress=None) -> Status:
        status = await real(launch, progress)
        await go_on.wait()
        return status

    monkeypatch.setattr(host.engine, "launch", slow)
    container, launching = await host.start_launch("sleep", "600")
    await host.eventually(lambda: (t := host.up.broker.live_containers.get(str(container.pk))) and t.started_at)
    killed = await host.command("kill", container)
    go_on.set()
    await host.answer(launching)
    assert (killed.outcome, killed.message) == ("done", "The container has ended.")
    ended = await host.until(container, "killed")
    assert ended.reason.startswith("Killed by")
    assert [event.kind for event in await host.events(container)] == ["started", "killed", "ended"]


async def test_launch_that_was_called_off_has_no_beginning(host: InProcess, monkeypatch) -> None:
    """What the engine sees of it while it is being taken away is not reported."""
    real = host.engine.launch

    async def late(launch: Launch, progress=None) -> Status:
        monkeypatch.setattr(host.up.containers, "_started", lambda *_: pytest.fail("its start was reported"))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            host.up.containers.seen(await real(launch, progress))
            raise
        raise AssertionError

    monkeypatch.setattr(host.engine, "launch", late)
    container, launching = await host.start_launch("sleep", "600")
    await host.eventually(lambda: str(container.pk) in host.up.broker.live_containers)
    killed = await host.command("kill", container)
    assert killed.message == "It was killed before it had started."
    assert (await host.answer(launching)).outcome == "refused"
    assert await host.events(container, "started", "ended") == []


async def test_launch_on_a_host_that_is_out_of_descriptors_can_be_tried_again(host: InProcess, monkeypatch) -> None:
    real, before = host.up.server.listen, resource.getrlimit(resource.RLIMIT_NOFILE)

    def short_of_them(*arguments: Any) -> Any:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            return real(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    with monkeypatch.context() as short:
        short.setattr(host.up.server, "listen", short_of_them)
        _, launching = await host.start_launch("true")
        answer = await host.answer(launching)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "host_short", 503)
    assert "Too many open files" in answer.message
    assert not host.up.broker.live_containers
    assert not any((host.home / "sockets").iterdir())
    await host.until(await host.launch("true"), "exited")


async def never_answered(host: InProcess, monkeypatch) -> tuple[Container, Command]:
    """A launch whose program runs, while its engine has not answered and nobody has seen it."""
    real = host.engine.launch

    async def late(launch: Launch, progress=None) -> Status:
        await real(launch, progress)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(host.up.containers, "apply_status", lambda status: None)  # else its kill is like any other
    monkeypatch.setattr(host.engine, "launch", late)
    container, launching = await host.start_launch("sh", "-c", "echo began; sleep 600")
    await host.says(container, "began")
    return container, launching


async def test_launch_that_was_called_off_and_cut_off_is_reported_as_killed_with_its_reason(
    host: InProcess, monkeypatch
) -> None:
    """The scheduler dies while it takes away what the engine has made of it by then."""
    looking = asyncio.Event()

    async def cut_off(*_: Any, **__: Any) -> None:
        looking.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(host.engine, "kill", cut_off)
    container, _ = await never_answered(host, monkeypatch)
    killing = await host.ask("kill", container)
    await host.eventually(looking.is_set)
    monkeypatch.undo()
    await host.restart()
    await host.answer(killing)
    ended = await host.until(container, "killed")
    assert ended.reason.startswith("Killed by")
    kinds = [event.kind for event in await host.events(container)]
    assert sorted(kinds) == ["ended", "killed", "started"]


async def test_launch_that_is_called_off_under_the_next_scheduler_leaves_no_socket(
    host: InProcess, monkeypatch
) -> None:
    """The last one had opened it."""
    asked = asyncio.Event()

    async def cut_off(*_: Any, **__: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(host.engine, "launch", cut_off)
    container, launching = await host.start_launch("sleep", "600")
    await host.eventually(asked.is_set)
    await host.stop()
    asked.clear()
    folder = host.home / "sockets" / str(container.pk)
    assert folder.exists()
    monkeypatch.setattr(Promises, "made", cut_off)
    await host.start()
    await host.eventually(asked.is_set)
    await host.command("kill", container)
    assert (await host.answer(launching)).code == "killed"
    assert not folder.exists()


async def test_launch_whose_calling_off_was_written_is_not_begun_again(host: InProcess) -> None:
    await host.stop()
    container, launching = await host.start_launch("sh", "-c", "echo began")
    killing = await host.ask("kill", container)
    await query(Container.objects.filter(pk=container.pk).update, kill_requested_at=timezone.now())
    await host.start()
    assert (await host.answer(killing)).outcome == "done"
    answer = await host.answer(launching)
    assert (answer.code, host.log(container)) == ("killed", "")
    assert (await host.get(container)).state == "killed"


async def test_paused_container_that_is_thawed_to_be_ended_was_not_resumed(host: InProcess) -> None:
    container = await host.launch("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done")
    await host.says(container, "deaf")
    paused = await host.command("pause", container)
    assert paused.outcome == "done", paused.message
    gently = await host.ask("kill", container, grace=60.0)
    await host.eventually(host.process(container).terminated.is_set)
    await host.up.containers.reconcile()
    await host.command("kill", container)
    await host.answer(gently)
    assert [event.kind for event in await host.events(container)] == ["started", "paused", "killed", "ended"]


# Asked to end, it does so once there is such a file.
SAVES = "trap 'echo asked; while [ ! -e {0} ]; do sleep 0.05; done; echo saved; exit 0' TERM; echo ready; {1}"
FOREVER = "while :; do sleep 0.05; done"


async def saving(host: InProcess) -> Container:
    container = await host.launch("sh", "-c", SAVES.format(host.home / "end", FOREVER))
    await host.says(container, "ready")
    return container


async def test_container_that_is_killed_while_it_is_being_paused_runs_in_its_grace(
    host: InProcess, monkeypatch
) -> None:
    container = await saving(host)
    pause, asked, go_on = host.engine.pause, asyncio.Event(), asyncio.Event()

    async def late(engine_id: str) -> None:
        asked.set()
        await go_on.wait()
        await pause(engine_id)

    monkeypatch.setattr(host.engine, "pause", late)
    pausing = await host.ask("pause", container)
    await host.eventually(asked.is_set)
    killing = await host.ask("kill", container, grace=PATIENCE)
    await host.says(container, "asked")
    go_on.set()
    answer = await host.answer(pausing)
    (host.home / "end").touch()
    assert (answer.outcome, "is being ended" in answer.message) == ("refused", True)
    assert (await host.answer(killing)).outcome == "done"
    assert "saved" in host.log(container)
    assert [event.kind for event in await host.events(container)] == ["started", "killed", "ended"]


async def test_container_whose_time_is_over_is_not_paused_in_its_grace(host: InProcess) -> None:
    container = await saving(host)
    host.up.ender.want(host.up.broker.live_containers[str(container.pk)], reason="Its time is up.", grace=PATIENCE)
    await host.says(container, "asked")
    answer = await host.command("pause", container)
    (host.home / "end").touch()
    assert (answer.outcome, "is being ended" in answer.message) == ("refused", True)
    await host.until(container, "killed")
    assert "saved" in host.log(container)


async def test_second_kill_of_a_launch_that_is_called_off_is_answered_when_nothing_of_it_is_left(
    host: InProcess, monkeypatch
) -> None:
    kill, done = host.engine.kill, host.up.commands._done
    killing, go_on = asyncio.Event(), asyncio.Event()
    left: dict[Any, bool] = {}

    async def slowly(*arguments: Any, **options: Any) -> None:
        killing.set()
        await go_on.wait()
        await kill(*arguments, **options)

    def answered(command: Command, *arguments: Any, **fields: Any) -> None:
        left[command.pk] = str(command.container_id) in host.engine.containers
        done(command, *arguments, **fields)

    monkeypatch.setattr(host.engine, "kill", slowly)
    monkeypatch.setattr(host.up.commands, "_done", answered)
    container, launching = await never_answered(host, monkeypatch)
    kills = []
    for _ in range(3):
        kills.append(await host.ask("kill", container))
        await host.command("policy", policy="fifo")  # so the kill was taken before
        await host.eventually(killing.is_set)
    go_on.set()
    answers = [await host.answer(each) for each in kills]
    assert [(each.outcome, each.message) for each in answers] == [("done", called_off().message)] * 3
    assert (await host.answer(launching)).code == "killed"
    assert [left[each.pk] for each in kills] == [False] * 3


async def test_kill_of_a_launch_of_which_something_is_left_is_not_shown_as_done(host: InProcess, monkeypatch) -> None:
    async def held(engine_id: str, **_: Any) -> None:
        raise EngineError("The kernel holds it.")

    monkeypatch.setattr(host.engine, "kill", held)
    container, _ = await never_answered(host, monkeypatch)
    answer = await host.command("kill", container)
    assert (answer.outcome, answer.code) == ("refused", "still_running")
    monkeypatch.undo()
    await host.eventually(host.engine.containers[str(container.pk)].ended.is_set)
