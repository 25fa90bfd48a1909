"""Launches that Docker's answers leave unsure, or a scheduler that was killed left half made."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import requests.exceptions

from scheduler.engines.base import EngineAway, Launch
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
