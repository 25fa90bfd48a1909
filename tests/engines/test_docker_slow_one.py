"""One container that Docker is slow about, whatever its owner does to that end, holds up no other."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import docker
import pytest
import requests.exceptions

from scheduler.engines.base import Condition, Exec, Launch
from scheduler.engines.docker import watch
from scheduler.engines.docker.client import WORKERS
from scheduler.engines.docker.engine import DockerEngine
from tests.engines.conftest import leaks_sockets
from tests.support.eventually import PATIENCE, eventually

pytestmark = [pytest.mark.docker, leaks_sockets]
Launcher = Callable[..., Launch]


async def two(engine: DockerEngine, a_launch: Launcher) -> tuple[str, str]:
    """The slow one, and a bystander of somebody else's."""
    slow = await engine.launch(a_launch("sleep", "600"))
    other = await engine.launch(a_launch("sleep", "600", name="bystander", owner="eve"))
    return slow.engine_id, other.engine_id


class Slow:
    """An inspection of one container is answered with what was so when it was asked for, but only when it is let."""

    def __init__(self) -> None:
        self.asked, self._go_on = 0, threading.Event()

    def wait(self) -> None:
        self.asked += 1
        self._go_on.wait(PATIENCE)

    def let(self) -> None:
        self._go_on.set()


@asynccontextmanager
async def slow_to_be_inspected(engine_id: str) -> AsyncIterator[Slow]:
    inspect, slow = watch._inspect, Slow()

    def slowly(api: docker.APIClient, asked: str) -> Any:
        found = inspect(api, asked)
        if asked == engine_id:
            slow.wait()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "_inspect", slowly)
        try:
            yield slow
        finally:
            slow.let()


async def are_paused_and_resumed(engine: DockerEngine, engine_ids: Iterable[str]) -> None:
    async with asyncio.timeout(PATIENCE / 2):
        for engine_id in engine_ids:
            await engine.pause(engine_id)
            await engine.resume(engine_id)


async def test_one_that_docker_is_silent_about_holds_up_no_other(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    mine, theirs = await two(docker_engine, a_launch)
    async with slow_to_be_inspected(mine) as slow:
        looks = [asyncio.create_task(docker_engine.exec(mine, Exec(("true",)))) for _ in range(2 * WORKERS)]
        for _ in range(2 * WORKERS):
            docker_engine._watch._hints.put_nowait(mine)
        docker_api.pause(mine)  # as by its owner: each comparison with Docker's list is a reason to look at it
        await eventually(lambda: slow.asked)
        await are_paused_and_resumed(docker_engine, [theirs])
        docker_api.kill(theirs)
        await eventually(lambda: Condition.ENDED in {each.condition for each in docker_engine._watch.changes.known()})
        assert slow.asked == 1
    await asyncio.gather(*looks, return_exceptions=True)


async def test_without_events_as_well_the_others_are_seen(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    mine, theirs = await two(docker_engine, a_launch)
    follower = docker_engine._watch._events
    assert follower is not None
    await asyncio.to_thread(follower.close)
    async with slow_to_be_inspected(mine) as slow:
        for each in (mine, theirs):
            docker_api.kill(each)
        await eventually(lambda: slow.asked)
        known = docker_engine._watch.changes.known
        await eventually(lambda: [each.engine_id for each in known() if each.condition is Condition.ENDED] == [theirs])


async def test_one_that_cannot_be_looked_at_stays_as_it_was_seen_last(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = await two(docker_engine, a_launch)
    inspect = watch._inspect

    def too_slow(api: docker.APIClient, asked: str) -> Any:
        if asked == mine:
            raise requests.exceptions.ReadTimeout("it takes longer than ten seconds")
        return inspect(api, asked)

    with monkeypatch.context() as patch:
        patch.setattr(watch, "_inspect", too_slow)
        for each in (mine, theirs):
            docker_api.kill(each)
        await eventually(lambda: not docker_api.containers(filters={"id": [mine, theirs]}))  # its list lags behind
        found = {each.engine_id: each.condition for each in await docker_engine.statuses()}
        assert found == {mine: Condition.RUNNING, theirs: Condition.ENDED}
    assert not docker_engine.away
    await eventually(lambda: {each.condition for each in docker_engine._watch.changes.known()} == {Condition.ENDED})


async def test_what_two_looks_at_once_see_is_reported_in_its_order(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    """The first is answered last, and with what was so before."""
    engine_id = (await docker_engine.launch(a_launch("sleep", "600"))).engine_id
    seen = docker_engine._watch.changes
    async with slow_to_be_inspected(engine_id) as slow:
        first = asyncio.create_task(docker_engine._watch.look(engine_id))
        await eventually(lambda: slow.asked)
        docker_api.kill(engine_id)
        second = asyncio.create_task(docker_engine._watch.look(engine_id))
        await asyncio.wait([second], timeout=0.2)
        slow.let()
        await asyncio.gather(first, second)
    assert [each.condition for each in seen.known()] == [Condition.ENDED]
    conditions = [each.condition for each in seen.drain()]
    assert conditions.index(Condition.ENDED) == len(conditions) - 1
    await eventually(lambda: not docker_engine._watch._looking)  # nothing is kept of a look


async def test_programs_that_take_long_to_begin_hold_up_nobody(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More at once, in a container that has no processor left, than there are threads for all of Docker's calls."""
    mine, theirs = await two(docker_engine, a_launch)
    create, slow = docker_engine._client.api.exec_create, Slow()

    def slowly(*arguments: Any, **words: Any) -> Any:
        slow.wait()
        return create(*arguments, **words)

    monkeypatch.setattr(docker_engine._client.api, "exec_create", slowly)
    execs = [asyncio.create_task(docker_engine.exec(mine, Exec(("true",)))) for _ in range(2 * WORKERS)]
    try:
        await eventually(lambda: slow.asked)
        await are_paused_and_resumed(docker_engine, [mine, theirs])
    finally:
        slow.let()
    for executed in await asyncio.gather(*execs):
        await executed.close()
