"""What could not be cleared away at its moment, because the engine was away or we were, is cleared away later."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from scheduler.containers.registry import Containers
from scheduler.engines.base import Condition, EngineAway, EngineError, Status
from scheduler.sessions.live_containers import LiveContainer
from scheduler.store.records import Records
from tests.support.host import GIB, query
from tests.support.inprocess.host import InProcess
from web.models import Claim, Container


def engine_has(host: InProcess, container: Container) -> bool:
    return str(container.pk) in host.engine.containers


async def is_removed(host: InProcess, container: Container) -> None:
    """By its record, which says so once the engine has done it."""

    async def removed() -> bool:
        return (await host.get(container)).removed_at is not None

    await host.eventually(removed)


async def test_container_that_was_to_go_when_done_goes_at_the_next_look(host: InProcess) -> None:
    container = await host.launch("true")
    await host.until(container, "exited")
    # As if the engine had been away when it ended.
    await query(Container.objects.filter(pk=container.pk).update, remove_when_done=True)
    await is_removed(host, container)
    assert not engine_has(host, container)


async def test_launch_that_a_scheduler_did_and_died_before_it_could_say_so_is_not_done_twice(host: InProcess) -> None:
    container = await host.launch("workload", "--bytes", "512MiB", "--hold", "600")
    await host.says(container, "holding")
    live = host.up.broker.live_containers[str(container.pk)]
    assert (await host.command("launch", container)).outcome == "done"
    assert host.up.broker.live_containers[str(container.pk)] is live
    assert (await host.command("kill", container)).outcome == "done"
    await host.returned(container)
    assert [event.kind for event in await host.events(container, "started", "ended")] == ["started", "ended"]


async def test_what_runs_though_its_launch_was_refused_is_ended(host: InProcess) -> None:
    container = await host.launch("sleep", "600")
    await host.stop()
    # As if the engine had answered too late, and the scheduler had died before it could take the container away.
    now = timezone.now()
    await query(Container.objects.filter(pk=container.pk).update, finished_at=now, removed_at=now)
    await host.start()
    await host.eventually(lambda: not engine_has(host, container))


async def test_one_that_cannot_be_ended_keeps_no_other_refused_launch_running(
    host: InProcess, monkeypatch: Any
) -> None:
    launched = [await host.launch("sleep", "600") for _ in range(2)]
    held = str(launched[0].pk)
    await host.stop()
    now = timezone.now()
    for each in launched:
        await query(Container.objects.filter(pk=each.pk).update, finished_at=now, removed_at=now)
    kill, lets_go = host.engine.kill, asyncio.Event()

    async def but_for_one(engine_id: str, **more: Any) -> None:
        if engine_id == held and not lets_go.is_set():
            raise EngineError("The kernel holds it.")
        await kill(engine_id, **more)

    async def held_first(_: Any, ids: Iterable[str]) -> list[str]:
        return sorted(ids, key=lambda each: each != held)

    monkeypatch.setattr(host.engine, "kill", but_for_one)
    monkeypatch.setattr(Records, "removed", held_first)
    await host.start()
    await host.eventually(lambda: not engine_has(host, launched[1]))
    assert engine_has(host, launched[0])
    lets_go.set()
    await host.eventually(lambda: not engine_has(host, launched[0]))


@pytest.mark.parametrize("asked", ["kept", "removed"])
async def test_launch_that_this_scheduler_has_refused_is_ended_while_the_database_is_away(
    host: InProcess, monkeypatch: Any, asked: str
) -> None:
    """What has ended is seen meanwhile as well."""
    launch, noted = host.engine.launch, asyncio.Event()

    async def late(*arguments: Any) -> None:
        await launch(*arguments)
        raise EngineAway("It did start, and said so too late.")

    async def away(*_: Any) -> None:
        raise OperationalError("the database is away")

    async def not_durable() -> None:
        noted.set()
        raise OperationalError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(host.engine, "launch", late)
        patch.setattr(host.up.store.records, asked, away)
        container, command = await host.start_launch("sleep", "600")
        assert (await host.answer(command)).code == "engine_away"
        patch.setattr(host.up.store, "durable", not_durable)
        await host.eventually(lambda: not engine_has(host, container))
    assert not noted.is_set()


async def test_ended_container_that_somebody_else_removed_counts_as_removed(host: InProcess) -> None:
    container, other = await host.launch("true"), await host.launch("true")
    for each in (container, other):
        await host.until(each, "exited")
    await host.engine.remove(container.engine_id)  # as `docker rm` would
    await is_removed(host, container)
    assert (await host.get(other)).removed_at is None


async def test_ended_container_of_an_engine_that_the_node_does_not_use_any_more_stays(host: InProcess) -> None:
    container = await host.launch("true")
    await host.until(container, "exited")
    await query(Container.objects.filter(pk=container.pk).update, engine="docker")
    assert await host.up.store.records.kept() == []


async def test_figures_of_a_scheduler_that_was_killed_do_not_stay(host: InProcess) -> None:
    container = await host.launch("true")
    await host.until(container, "exited")
    await host.stop()
    await query(Claim.objects.filter(container=container).update, used=GIB, granted=GIB)
    await host.start()
    claim = await host.claim(container)
    assert (claim.used, claim.granted) == (0, 0)


async def test_socket_folder_that_a_killed_scheduler_left_goes_at_the_next_start(host: InProcess) -> None:
    living = await host.launch("workload", "--hold", "600", "--bytes", "1MiB")
    await host.stop()
    left = host.home / "sockets" / "0f0e2a3c-0000-4000-8000-000000000000"
    left.mkdir()
    (left / "gpushare.sock").touch()
    await host.start()
    assert [folder.name for folder in (host.home / "sockets").iterdir()] == [str(living.pk)]


async def test_container_that_ended_under_no_scheduler_has_no_socket_while_its_memory_comes_back(
    host: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container has ended, and the card still shows a process of it."""
    container = await host.launch("workload", "--bytes", "1GiB", "--hold", "600", gpu_memory=2 * GIB)
    await host.says(container, "holding")
    await host.stop()

    async def all_have_ended(containers: Containers) -> None:
        for live in containers.all():
            containers.seen(Status(live.id, live.engine_id, Condition.ENDED, 1))

    monkeypatch.setattr(Containers, "reconcile", all_have_ended)
    await host.start()
    assert str(container.pk) in host.up.broker.live_containers
    assert list((host.home / "sockets").iterdir()) == []


@pytest.mark.parametrize("times", [1, 3])
async def test_end_that_could_not_be_taken_in_is_not_lost_and_holds_nobody_up(
    host: InProcess, monkeypatch, times: int
) -> None:
    """The engine tells it once."""
    monkeypatch.setattr("scheduler.parts.RESTART", 600.0)  # what follows the engine is not to start again
    container, other = await host.launch("sleep", "600"), await host.launch("sleep", "600")
    end, failures = Containers._ended, iter(range(times))

    def fails(self: Containers, live: LiveContainer, status: Status) -> None:
        if live.id == str(container.pk) and next(failures, None) is not None:
            raise RuntimeError("a fault of ours")
        end(self, live, status)

    monkeypatch.setattr(Containers, "_ended", fails)
    for each in (container, other):
        host.engine.kill_process(host.process(each).pid)  # behind our back
    for each in (other, container):
        assert (await host.until(each, "failed")).exit_code == 137
        assert [event.kind for event in await host.events(each)] == ["started", "ended"]
