"""Launches that Docker's answers leave unsure, or a scheduler that was killed left half made."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import docker
import docker.errors
import pytest
import requests.exceptions

from scheduler.engines.base import EngineAway, EngineError, Launch
from scheduler.engines.docker.engine import DockerEngine
from tests.engines.conftest import leaks_sockets

pytestmark = [pytest.mark.docker, leaks_sockets]
Launcher = Callable[..., Launch]


async def test_keyboard_of_a_launch_that_was_not_answered_in_time_is_let_go(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_slow(_: str) -> None:
        raise requests.exceptions.ReadTimeout("it takes longer than a minute")

    with monkeypatch.context() as patch:
        patch.setattr(docker_engine._client.api, "start", too_slow)
        with pytest.raises(EngineAway):
            await docker_engine.launch(a_launch("sleep", "60", tty=True, interactive=True))
    assert docker_engine._attached == {}


def says(sentence: str) -> docker.errors.APIError:
    return docker.errors.APIError(sentence, response=Mock(status_code=500), explanation=sentence)


async def test_launch_that_failed_and_could_not_be_taken_away_is_told_as_one_that_may_run(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is kept then, until its refusal is in the database: tests/scheduler/test_answered_too_late.py."""
    start = docker_engine._client.api.start

    def failed(engine_id: str) -> None:
        start(engine_id)
        raise says("failed to start shim: context deadline exceeded")

    def stays(*_: object, **__: object) -> None:
        raise says("could not kill container: tried to kill container, but did not receive an exit event")

    launch = a_launch("sleep", "60")
    with monkeypatch.context() as patch:
        patch.setattr(docker_engine._client.api, "start", failed)
        patch.setattr(docker_engine._client.api, "remove_container", stays)
        with pytest.raises(EngineAway, match=r"may run for a while: .* did not receive an exit event"):
            await docker_engine.launch(launch)
    (found,) = await docker_engine.sightings()
    assert docker_api.inspect_container(found.engine_id)["State"]["Running"]


async def test_launch_that_failed_and_is_gone_already_is_told_as_what_it_was(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(engine_id: str) -> None:
        docker_api.remove_container(engine_id)
        raise says("something that nobody has seen before")

    with monkeypatch.context() as patch:
        patch.setattr(docker_engine._client.api, "start", failed)
        with pytest.raises(EngineError, match="nobody has seen before") as caught:
            await docker_engine.launch(a_launch("sleep", "60"))
    assert not isinstance(caught.value, EngineAway)
