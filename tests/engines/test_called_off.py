"""A launch that is cancelled: what it has made is there to be taken away by then, and nothing comes after that."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.engines.base import Engine, Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.process.taken import IMAGE as LOCAL
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import empty, started
from tests.support.eventually import eventually

Launcher = Callable[..., Launch]


async def called_off(launching: asyncio.Task[Any]) -> None:
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching


async def taken_away(engine: Engine) -> int:
    """How many there were."""
    count = len(await engine.statuses())
    await empty(engine)
    return count


async def test_keeper_that_is_under_way_is_waited_for(tmp_path: Path, empty_shim: Path, a_launch: Launcher) -> None:
    async with started(ProcessEngine(tmp_path / "processes", RuntimeEnvironment(empty_shim))) as engine:
        launch = a_launch("sleep", "600", image=LOCAL)
        launching = asyncio.create_task(engine.launch(launch))
        await eventually((tmp_path / "processes" / launch.id / "launch.json").exists)
        await called_off(launching)
        assert await taken_away(engine) == 1


@pytest.mark.docker
async def test_nothing_is_made_once_the_image_is_there(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes to fetch one, which nobody is to wait for."""
    find = docker_engine._images.find
    fetching, there, over = threading.Event(), threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Any:
        fetching.set()
        there.wait(60)
        try:
            return find(*arguments)
        finally:
            over.set()

    monkeypatch.setattr(docker_engine._images, "find", slowly)
    launching = asyncio.create_task(docker_engine.launch(a_launch("sleep", "600")))
    await eventually(fetching.is_set)
    await called_off(launching)
    there.set()
    await eventually(over.is_set)
    assert await taken_away(docker_engine) == 0


@pytest.mark.docker
async def test_what_docker_is_making_is_waited_for(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = docker_engine._maker._start
    starting, go_on = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Any:
        starting.set()
        go_on.wait(60)
        return start(*arguments)

    monkeypatch.setattr(docker_engine._maker, "_start", slowly)
    launching = asyncio.create_task(docker_engine.launch(a_launch("sleep", "600")))
    await eventually(starting.is_set)
    asyncio.get_running_loop().call_later(0.1, go_on.set)
    await called_off(launching)
    assert await taken_away(docker_engine) == 1


@pytest.mark.docker
async def test_a_docker_that_hangs_is_not_waited_for(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.engines.docker.engine.LOOK_WITHIN", 0.1)
    starting, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def hangs(*_: Any) -> Any:
        starting.set()
        go_on.wait(60)
        over.set()
        raise OSError("It does not answer.")

    monkeypatch.setattr(docker_engine._maker, "_start", hangs)
    launching = asyncio.create_task(docker_engine.launch(a_launch("sleep", "600")))
    await eventually(starting.is_set)
    await called_off(launching)
    assert not over.is_set()
    go_on.set()
