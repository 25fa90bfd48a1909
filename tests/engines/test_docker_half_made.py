"""Launches that Docker's answers leave unsure, or a scheduler that was killed left half made."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import docker
import docker.errors
import pytest
import requests.exceptions

from scheduler.engines.base import Condition, EngineAway, EngineError, Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.options import LABEL
from tests.engines.conftest import leaks_sockets
from tests.support.eventually import eventually

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
            await docker_engine.launch(a_launch("sleep", "600", tty=True, interactive=True))
    assert docker_engine._attached == {}


def says(sentence: str) -> docker.errors.APIError:
    return docker.errors.APIError(sentence, response=Mock(status_code=500), explanation=sentence)


async def test_launch_that_failed_and_could_not_be_taken_away_is_reported_as_one_that_may_run(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket is kept then, until its refusal is in the database: tests/scheduler/test_answered_too_late.py."""
    start = docker_engine._client.api.start

    def failed(engine_id: str) -> None:
        start(engine_id)
        raise says("failed to start shim: context deadline exceeded")

    def stays(*_: object, **__: object) -> None:
        raise says("could not kill container: tried to kill container, but did not receive an exit event")

    launch = a_launch("sleep", "600")
    with monkeypatch.context() as patch:
        patch.setattr(docker_engine._client.api, "start", failed)
        patch.setattr(docker_engine._client.api, "remove_container", stays)
        with pytest.raises(EngineAway, match=r"may run for a while: .* did not receive an exit event"):
            await docker_engine.launch(launch)
    (found,) = await docker_engine.statuses()
    assert docker_api.inspect_container(found.engine_id)["State"]["Running"]


async def test_launch_that_failed_and_is_gone_already_is_reported_as_what_it_was(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(engine_id: str) -> None:
        docker_api.remove_container(engine_id)
        raise says("something that nobody has seen before")

    with monkeypatch.context() as patch:
        patch.setattr(docker_engine._client.api, "start", failed)
        with pytest.raises(EngineError, match="nobody has seen before") as caught:
            await docker_engine.launch(a_launch("sleep", "600"))
    assert not isinstance(caught.value, EngineAway)


# ---- what a scheduler that was killed had asked for, Docker does after the next one has looked ----------------------

Create = Callable[..., dict[str, Any]]


def instead(engine: DockerEngine, patch: pytest.MonkeyPatch, answer: Callable[[Create], Any]) -> None:
    """`answer` to each wish for the launch's container, and what really makes it. A look into its image goes on."""
    create = engine._client.api.create_container_from_config

    def asked(body: dict[str, Any], name: str) -> Any:
        return answer(lambda: create(body, name)) if LABEL in body.get("Labels", {}) else create(body, name)

    patch.setattr(engine._client.api, "create_container_from_config", asked)


def meanwhile(engine: DockerEngine, patch: pytest.MonkeyPatch, happens: Callable[[Create], None]) -> None:
    """`happens` before the launch is made; it is given what makes the same for the scheduler that was killed."""

    def later(create: Create) -> Any:
        happens(create)
        return create()

    instead(engine, patch, later)


async def test_launch_that_an_earlier_scheduler_had_made_only_now_is_started(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile(docker_engine, monkeypatch, lambda create: create())
    status = await docker_engine.launch(a_launch("cat", interactive=True))
    assert status.condition is Condition.RUNNING
    assert docker_api.inspect_container(status.engine_id)["State"]["Running"]
    attached = await docker_engine.attach(status.engine_id)
    await attached.write(b"there\n")
    assert (await attached.read())[1] == b"there\n"
    await attached.close()


async def test_launch_that_an_earlier_scheduler_has_docker_make_still_is_waited_for(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is taken before it is listed."""
    asked = []

    def still(create: Create) -> Any:
        asked.append(create)
        if len(asked) < 4:
            said = 'Conflict. The container name "/one" is already in use by container "abc".'
            raise docker.errors.APIError(said, response=Mock(status_code=409), explanation=said)
        if len(asked) == 4:
            create()
        return create()

    instead(docker_engine, monkeypatch, still)
    status = await docker_engine.launch(a_launch("sleep", "600"))
    assert docker_api.inspect_container(status.engine_id)["State"]["Running"]


async def test_launch_that_an_earlier_scheduler_has_begun_is_not_begun_again(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = []

    def happens(create: Create) -> None:
        engine_id = create()["Id"]
        docker_api.start(engine_id)
        docker_api.wait(engine_id)
        began.append(docker_api.inspect_container(engine_id)["State"]["StartedAt"])

    meanwhile(docker_engine, monkeypatch, happens)
    engine_id = (await docker_engine.launch(a_launch("true"))).engine_id
    await eventually(lambda: docker_engine._watch.changes.known()[0].condition is Condition.ENDED)
    assert [docker_api.inspect_container(engine_id)["State"]["StartedAt"]] == began
