"""A launch whose engine did it and answered too late: refused, and nothing of it is left; but first that is written.

And a pause or a resume: what is seen then is the answer.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import requests.exceptions
from django.db import OperationalError

from scheduler.engines.base import EngineAway, Launch, Status
from scheduler.engines.docker.engine import DockerEngine
from scheduler.parts import PERIODS
from tests.support.dockerd import build_workload, docker_api, dockerd
from tests.support.eventually import eventually
from tests.support.host import GIB, Host, a_host, query
from web.models import Command, Container

__all__ = ["docker_api", "dockerd"]
IMAGE = "gpushare/late:latest"
HOLD = ("workload", "--bytes", "1GiB", "--check", "1MiB", "--hold", "600")


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
async def host(
    request: pytest.FixtureRequest,
    transactional_db: None,
    settings: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Host]:
    monkeypatch.setitem(PERIODS, "leftovers", 0.05)
    address = request.getfixturevalue("dockerd").address if request.param == "docker" else ""
    if address:
        build_workload(address, IMAGE)
    async with a_host(settings, tmp_path_factory.mktemp("host"), docker=address) as host:
        if address:
            host.image, host.workload = IMAGE, Path("/bin/workload")
        yield host


def answers_too_late(engine: Any, patch: pytest.MonkeyPatch) -> None:
    """To a launch; it does what it is asked."""
    if isinstance(engine, DockerEngine):
        start = engine._client.api.start

        def too_slow(engine_id: str) -> None:
            start(engine_id)
            raise requests.exceptions.ReadTimeout("it did start, and said so too late")

        patch.setattr(engine._client.api, "start", too_slow)
        return
    launch = engine.launch

    async def late(asked: Launch, *more: Any) -> Status:
        await launch(asked, *more)
        raise EngineAway("It did start, and said so too late.")

    patch.setattr(engine, "launch", late)


async def eventually_nothing_of(id_: str, host: Host) -> None:
    """The engine has nothing more of it."""
    async with asyncio.timeout(60):
        while True:
            if id_ not in {status.id for status in await host.up.engine.statuses()}:
                return
            await asyncio.sleep(0.05)


async def events_of(host: Host, container: Container) -> list[str]:
    return [event.kind for event in await host.events(container, "started", "ended", "killed")]


async def test_launch_that_is_refused_too_late_is_ended_and_not_reported(host: Host) -> None:
    with pytest.MonkeyPatch.context() as patch:
        answers_too_late(host.up.engine, patch)
        container, launch = await host.start_launch(*HOLD, gpu_memory=2 * GIB)
        refused = await host.answer(launch)
    assert (refused.outcome, refused.code) == ("refused", "engine_away")
    id_ = str(container.pk)
    await eventually(lambda: id_ not in host.up.broker.live_containers)
    assert not (host.home / "sockets" / id_).exists()
    await eventually_nothing_of(id_, host)
    row = await host.get(container)
    assert (row.state, row.reason, row.started_at) == ("failed", refused.message, None)
    assert await events_of(host, container) == []


async def test_launch_keeps_its_socket_until_its_refusal_is_written(host: Host) -> None:
    """Else its program ended for want of it, and the next scheduler recorded that it had failed."""
    tried = asyncio.Event()

    async def lost(*_: object) -> None:
        return

    async def full() -> None:
        tried.set()
        raise OperationalError("database or disk is full")

    with pytest.MonkeyPatch.context() as patch:
        answers_too_late(host.up.engine, patch)
        patch.setattr(host.up.store, "_write", lost)  # as if `kill -9` had hit it
        patch.setattr(host.up.store, "durable", full)
        container, launch = await host.start_launch(*HOLD, gpu_memory=2 * GIB)
        await asyncio.wait_for(tried.wait(), 60)
        await host.says(container, "holding")
        await host.stop()
    assert (await query(Command.objects.get, pk=launch.pk)).done_at is None
    await host.start()
    assert (await host.answer(launch)).outcome == "done"
    live = host.up.broker.live_containers[str(container.pk)]
    assert [live.used(gpu) >= GIB for gpu in live.quota] == [True]
    assert await events_of(host, container) == ["started"]


def acts_too_late(engine: Any, patch: pytest.MonkeyPatch, act: str, *, does_it: bool = True) -> None:
    """On `pause` or `resume`; Docker has other words for the second."""
    is_docker = isinstance(engine, DockerEngine)
    place, name = (engine._client.api, act.replace("resume", "unpause")) if is_docker else (engine, act)
    do = getattr(place, name)

    def too_slow(engine_id: str) -> None:
        if does_it:
            do(engine_id)
        raise requests.exceptions.ReadTimeout("it said so too late")

    async def late(engine_id: str) -> None:
        if does_it:
            await do(engine_id)
        raise EngineAway("It said so too late.")

    patch.setattr(place, name, too_slow if is_docker else late)


async def test_pause_and_resume_that_are_answered_too_late_are_reported_as_done(host: Host) -> None:
    container = await host.launch("sleep", "600")
    with pytest.MonkeyPatch.context() as patch:
        for act, state in (("pause", "paused"), ("resume", "running")):
            acts_too_late(host.up.engine, patch, act)
            answer = await host.command(act, container)
            assert (answer.outcome, (await host.get(container)).state) == ("done", state)
    assert [event.kind for event in await host.events(container, "paused", "unpaused")] == ["paused", "unpaused"]


async def test_pause_that_was_not_answered_and_not_done_is_refused(host: Host) -> None:
    container = await host.launch("sleep", "600")
    with pytest.MonkeyPatch.context() as patch:
        acts_too_late(host.up.engine, patch, "pause", does_it=False)
        answer = await host.command("pause", container)
    assert (answer.outcome, answer.code, "may be" in answer.message) == ("refused", "engine_away", False)
    assert (await host.get(container)).state == "running"


async def test_who_nobody_can_look_at_after_its_pause_may_be_paused_and_is_shown_so(host: Host) -> None:
    container = await host.launch("sleep", "600")

    async def away() -> list[Status]:
        raise EngineAway("It does not answer.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host.up.engine, "statuses", away)
        acts_too_late(host.up.engine, patch, "pause")
        answer = await host.command("pause", container)
    assert (answer.outcome, answer.code) == ("refused", "engine_away")
    assert "It may be paused nevertheless" in answer.message
    await host.until(container, "paused")
