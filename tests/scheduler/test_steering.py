"""What people can change about a running host, and the ends that waiting and running have."""

import asyncio
import errno
import os

import pytest
from django.db import OperationalError, transaction

from scheduler.engines.base import EngineAway, Launch, Status
from tests.support.host import GIB, MIB, query
from tests.support.inprocess.host import InProcess
from tests.support.inprocess.process import Process
from tests.support.people import make_user
from web.errors import Problem
from web.models import Command, Container, Node

HOLD = ("--hold", "600")


async def _full(host: InProcess) -> Container:
    """A container that holds 3 of 5 GiB."""
    holder = await host.launch("workload", "--bytes", "3GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(holder, "holding")
    return holder


async def _waiting(host: InProcess, size: str = "3GiB", **fields: object) -> Container:
    waiter = await host.launch("workload", "--bytes", size, "--chunks", "1", *HOLD, gpu_memory=4 * GIB, **fields)
    return await host.until(waiter, "suspended")


async def test_who_could_not_be_paused_as_the_host_had_no_descriptors_left_is_given_memory_like_before(
    host: InProcess, monkeypatch
) -> None:
    holder = await _full(host)
    waiter = await _waiting(host)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(host.engine, "pause", _no_descriptors)
        refused = await host.command("pause", waiter)
    assert (refused.outcome, refused.code) == ("refused", "host_short")
    assert (await host.command("kill", holder)).outcome == "done"
    await host.says(waiter, "holding")


async def _no_descriptors(*_: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_weight_and_limit_change_while_it_runs(host: InProcess) -> None:
    container = await host.launch("sleep", "600", compute_limit=30)
    assert (container.compute_weight, container.compute_limit) == (100, 30)
    calls = []
    host.scheduler.steering.share_changed = lambda it: calls.append((it.priority, it.compute_weight, it.compute_limit))
    assert (await host.command("change", container, compute_weight=300)).outcome == "done"
    assert (await host.command("change", container, compute_limit=None, priority=5)).outcome == "done"
    assert calls == [(0, 300, 30), (5, 300, None)]
    now = await host.get(container)
    assert (now.priority, now.compute_weight, now.compute_limit) == (5, 300, None)


async def test_how_a_gpu_is_shared_is_kept_for_the_next_start(host: InProcess) -> None:
    asked = []

    async def set_mode(gpu: str, mode: str) -> str:
        asked.append((gpu, mode))
        if mode == "turns":
            raise Problem("cannot_turn", "The driver is too old.", 409, "compute")
        return "Containers compute on it at once."

    host.scheduler.commands.set_mode = set_mode
    (gpu,) = host.scheduler.gpus.cards
    refused = await host.command("compute", gpu=gpu, compute="turns")
    assert (refused.outcome, refused.code) == ("refused", "cannot_turn")
    assert await host.scheduler.store.records.compute_asked() == {}
    assert (await host.command("compute", gpu=gpu, compute="shared")).message == "Containers compute on it at once."
    assert await host.scheduler.store.records.compute_asked() == {gpu: "shared"}
    assert asked == [(gpu, "turns"), (gpu, "shared")]


async def test_killed_while_suspended(host: InProcess) -> None:
    await _full(host)
    waiter = await _waiting(host)
    answer = await host.command("kill", waiter)
    assert answer.outcome == "done"
    killed = await host.get(waiter)
    assert killed.state == "killed"
    assert killed.suspended_since is None
    assert killed.reason.startswith("Killed by")


async def test_command_about_an_ended_container_is_refused(host: InProcess) -> None:
    container = await host.launch("true")
    await host.until(container, "exited")
    answer = await host.command("pause", container)
    assert (answer.outcome, answer.code, answer.status) == ("refused", "container_ended", 409)


async def test_on_shortage_fail_ends_the_call_at_once(host: InProcess) -> None:
    await _full(host)
    impatient = await host.launch("workload", "--bytes", "3GiB", gpu_memory=4 * GIB, on_shortage="fail")
    ended = await host.until(impatient, "failed")
    assert ended.exit_code == 2
    assert {event.detail for event in await host.events(impatient, "rejected")} == {"shortage"}


async def test_max_wait_ends_the_call(host: InProcess) -> None:
    await _full(host)
    waiter = await host.launch("workload", "--bytes", "3GiB", gpu_memory=4 * GIB, max_wait_seconds=0.5)
    ended = await host.until(waiter, "failed")
    assert ended.exit_code == 2
    rejected = await host.events(waiter, "rejected")
    assert rejected[0].detail == "waited_too_long"
    assert rejected[0].waited == pytest.approx(0.5, abs=0.1)


async def test_ttl_warns_then_ends(host: InProcess) -> None:
    container = await host.launch("sleep", "6000", ttl_seconds=3600.0)
    await host.passes(3000)
    assert not await host.events(container, "warned")
    await host.passes(550)
    assert [event.kind for event in await host.events(container, "warned", "killed")] == ["warned"]
    await host.passes(50)
    ended = await host.until(container, "killed")
    assert ended.reason == "Its time limit of 3600 s was reached."
    assert (ended.finished_at - ended.started_at).total_seconds() == pytest.approx(3600, abs=2)
    kinds = [event.kind for event in await host.events(container)]
    assert kinds.index("warned") < kinds.index("killed") < kinds.index("ended")


async def test_ttl_ends_a_program_that_ignores_sigterm(host: InProcess) -> None:
    container = await host.launch("sh", "-c", "trap '' TERM; echo deaf; while :; do :; done", ttl_seconds=60.0)
    await host.says(container, "deaf")
    await host.passes(60)
    ended = await host.until(container, "killed")
    assert ended.exit_code == 137


async def test_lowered_quota_holds_at_once_and_a_raised_one_helps(host: InProcess) -> None:
    container = await host.launch("workload", "--bytes", "1GiB", *HOLD, gpu_memory=4 * GIB)
    await host.says(container, "holding")
    live = host.up.broker.live_containers[str(container.pk)]
    gpu = next(iter(live.quota))
    answer = await host.command("change", container, gpu_memory=512 * MIB)
    assert answer.outcome == "refused"
    assert live.quota[gpu] == 4 * GIB
    answer = await host.command("change", container, gpu_memory=2 * GIB, priority=5)
    assert answer.outcome == "done", answer.message
    assert live.granted(gpu) <= 2 * GIB
    claim = await host.claim(container)
    changed = await host.get(container)
    assert (claim.quota, changed.gpu_memory, changed.priority) == (2 * GIB, 2 * GIB, 5)
    assert [event.bytes for event in await host.events(container, "quota")] == [2 * GIB]


async def test_policy_changes_while_containers_wait_and_nobody_is_lost(host: InProcess) -> None:
    holder = await _full(host)
    waiters = [await _waiting(host), await _waiting(host)]
    assert (await host.command("policy", policy="best-fit")).outcome == "done"
    refused = await host.command("policy", policy="nonsense")
    assert (refused.outcome, refused.status) == ("refused", 400)
    await host.command("kill", holder)
    await host.eventually(lambda: any("holding" in host.log(waiter) for waiter in waiters))
    first = next(waiter for waiter in waiters if "holding" in host.log(waiter))
    await host.command("kill", first)
    for waiter in waiters:
        await host.says(waiter, "holding")


async def test_admin_reorders_the_queue(host: InProcess) -> None:
    holder = await _full(host)
    waiters = []
    for _ in range(2):
        container = await host.launch(asks, gpu_memory=4 * GIB)
        waiters.append(await host.until(container, "suspended"))
    first, second = waiters
    assert (await host.command("reorder", containers=[str(second.pk), str(first.pk)])).outcome == "done"
    host.up.report.publish()
    await host.up.store.flush()
    assert (await host.get(second)).queue_position == 1
    await host.command("kill", holder)
    await host.says(second, "has it")
    assert (await host.get(first)).state == "suspended"
    await host.command("kill", second)
    await host.says(first, "has it")


async def asks(process: Process) -> None:
    """Has one call only, where a program begins with one for its context."""
    await process.need(3 * GIB)
    process.say("has it")
    await process.terminated.wait()


async def test_place_given_by_an_admin_lasts_from_one_call_to_the_next(host: InProcess) -> None:
    holder = await _full(host)
    first, second = await _waiting(host), await _waiting(host)  # the second waits for its context
    assert (await host.command("reorder", containers=[str(second.pk), str(first.pk)])).outcome == "done"
    await host.command("kill", holder)
    await host.says(second, "holding")
    assert (await host.get(first)).state == "suspended"


async def test_guaranteed_container_has_its_quota_or_is_not_started(host: InProcess) -> None:
    await _full(host)
    _, command = await host.start_launch("sleep", "600", gpu_memory=4 * GIB, guaranteed=True)
    answer = await host.answer(command)
    assert (answer.outcome, answer.code) == ("refused", "shortage")
    assert (await host.get(answer.container)).removed_at is not None
    await host.launch("sleep", "600", gpu_memory=GIB, guaranteed=True)


async def test_launch_that_is_refused_leaves_nothing(host: InProcess) -> None:
    for fields in ({"image": "nonsense"}, {"gpu_memory": 6 * GIB}, {"command": ["/no/such/program"]}):
        words = fields.pop("command", ["true"])
        container, command = await host.start_launch(*words, **fields)
        answer = await host.answer(command)
        assert answer.outcome == "refused"
        assert answer.message
        refused = await host.get(container)
        assert refused.finished_at is not None
        assert refused.reason == answer.message
    assert not host.up.broker.live_containers
    assert not list((host.home / "sockets").iterdir())
    assert await host.engine.statuses() == []


async def _never(launch: Launch, progress: object = None) -> Status:
    """An engine that fetches an image for as long as it is let."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_launch_that_is_killed_before_it_has_started_counts_as_killed(host: InProcess, monkeypatch) -> None:
    monkeypatch.setattr(host.engine, "launch", _never)
    container, launch = await host.start_launch("sleep", "600")
    await host.eventually(lambda: str(container.pk) in host.up.broker.live_containers)
    killed = await host.command("kill", container)
    assert (killed.outcome, killed.message) == ("done", "It was killed before it had started.")
    refused = await host.answer(launch)
    assert (refused.outcome, refused.code) == ("refused", "killed")
    assert (await host.get(container)).state == "killed"


async def test_launch_and_its_kill_that_are_read_together_end_at_once(host: InProcess, monkeypatch) -> None:
    monkeypatch.setattr(host.engine, "launch", _never)

    def both() -> tuple[Command, Command]:
        with transaction.atomic():
            container = Container.objects.create(
                name="x", owner=make_user("ada"), image="local", command=["sleep", "600"], gpu_memory=GIB
            )
            launch = Command.objects.create(kind="launch", container=container, issued_by=container.owner)
            return launch, Command.objects.create(kind="kill", container=container, issued_by=container.owner)

    launch, kill = await query(both)
    assert (await host.answer(kill)).outcome == "done"
    assert (await host.answer(launch)).code == "killed"


async def test_launch_that_is_killed_while_the_engine_is_away_holds_nothing(host: InProcess, monkeypatch) -> None:
    async def away() -> list[Status]:
        raise EngineAway("It does not answer.")

    with monkeypatch.context() as broken:
        broken.setattr(host.engine, "launch", _never)
        container, launch = await host.start_launch("sleep", "600", gpu_memory=4 * GIB, guaranteed=True)
        await host.eventually(lambda: str(container.pk) in host.up.broker.live_containers)
        broken.setattr(host.engine, "statuses", away)
        await host.command("kill", container)
        assert (await host.answer(launch)).code == "engine_away"
    await host.launch("sleep", "600", gpu_memory=4 * GIB, guaranteed=True)


async def test_command_that_the_database_does_not_take_may_be_repeated(host: InProcess, monkeypatch) -> None:
    async def locked(*_: object, **__: object) -> None:
        raise OperationalError("database is locked")

    with monkeypatch.context() as broken:
        broken.setattr(host.up.store.promises, "make", locked)
        _, launch = await host.start_launch("sleep", "600")
        refused = await host.answer(launch)
    assert (refused.status, refused.code) == (503, "database_away")
    assert host.up.broker.live_containers == {}
    await host.launch("sleep", "600")


async def test_kill_that_the_engine_does_not_carry_out_is_tried_again(host: InProcess, monkeypatch) -> None:
    tried: list[object] = []

    async def away(*_: object, **__: object) -> None:
        tried.append(...)
        raise EngineAway("It does not answer.")

    container = await host.launch("sleep", "600")
    with monkeypatch.context() as broken:
        broken.setattr(host.engine, "kill", away)
        assert (await host.command("kill", container)).code == "engine_away"
        await host.eventually(lambda: len(tried) > 2)  # again, to no avail
        assert (await host.get(container)).state == "running"
    await host.until(container, "killed")


async def test_container_that_wants_it_is_removed_when_done(host: InProcess) -> None:
    container = await host.launch("true", remove_when_done=True)
    await host.eventually(lambda: query(Container.objects.filter(pk=container.pk, removed_at__isnull=False).exists))
    assert await host.engine.statuses() == []


async def test_node_shows_signs_of_life_and_the_policy(host: InProcess) -> None:
    node = await query(Node.objects.get)
    assert node.is_alive()
    assert (node.policy, node.engine, node.simulated) == ("fifo", "process", True)
