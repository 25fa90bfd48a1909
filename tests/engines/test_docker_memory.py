"""A container that passes its limit of host memory says so, also where Docker learns of it after the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import docker
import pytest

from scheduler.engines.base import Condition, Launch
from scheduler.engines.docker import watch
from scheduler.engines.docker.engine import DockerEngine

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]


async def test_container_that_passes_its_memory_limit_says_so(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    if docker_engine._limits.memory is None:
        pytest.skip("this host has no control group for host memory")
    launches = [a_launch("dd", "if=/dev/zero", "of=/dev/null", "bs=200M", memory=32 << 20) for _ in range(4)]
    await asyncio.gather(*(docker_engine.launch(launch) for launch in launches))
    reasons = {}
    async with asyncio.timeout(30):
        async for sighting in docker_engine.changes():
            if sighting.condition is Condition.ENDED:
                reasons[sighting.id] = (sighting.exit_code, sighting.reason)
                if len(reasons) == len(launches):
                    break
    said = "Out of host memory: it passed its limit of 32 MiB and was ended."
    assert set(reasons.values()) == {(137, said)}


async def test_reason_that_docker_tells_after_the_end_is_waited_for(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect, looks = watch._inspect, []

    def late(api: Any, engine_id: str) -> Any:
        found = inspect(api, engine_id)
        if found and found["State"]["Status"] == "exited":
            looks.append(engine_id)
            found["State"]["OOMKilled"] = len(looks) > 2
        return found

    monkeypatch.setattr(watch, "_inspect", late)
    launch = a_launch("sleep", "60", memory=32 << 20)
    engine_id = (await docker_engine.launch(launch)).engine_id
    docker_api.kill(engine_id)  # as the kernel would
    async with asyncio.timeout(15):
        async for sighting in docker_engine.changes():
            if sighting.condition is Condition.ENDED:
                break
    assert sighting.reason.startswith("Out of host memory")
