"""A container that passes its limit of host memory says so, also where Docker learns of it after the end."""

import asyncio
from collections.abc import Callable
from typing import Any

import docker
import pytest

from scheduler.engines import kernel_log
from scheduler.engines.base import Condition, Launch
from scheduler.engines.docker import watch
from scheduler.engines.docker.engine import DockerEngine
from tests.engines.conftest import next_change

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]
PASSED = "Out of host memory: it passed its limit of 32 MiB and was ended."


async def test_container_that_passes_its_memory_limit_says_so(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    if docker_engine._limits.memory is None:
        pytest.skip("this host has no control group for host memory")
    launches = [a_launch("dd", "if=/dev/zero", "of=/dev/null", "bs=200M", memory=32 << 20) for _ in range(4)]
    await asyncio.gather(*(docker_engine.launch(launch) for launch in launches))
    reasons = {}
    async with asyncio.timeout(60):
        async for status in docker_engine.changes():
            if status.condition is Condition.ENDED:
                reasons[status.id] = (status.exit_code, status.reason)
                if len(reasons) == len(launches):
                    break
    assert set(reasons.values()) == {(137, PASSED)}


async def test_limit_that_was_passed_is_reported_where_docker_never_learns_of_it(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flag does not come if the control group is removed before containerd looks at it."""
    if not kernel_log.can_be_read():
        pytest.skip("nobody may read the kernel's log here")
    inspect = watch._inspect

    def unaware(api: Any, engine_id: str) -> Any:
        if found := inspect(api, engine_id):
            found["State"]["OOMKilled"] = False
        return found

    monkeypatch.setattr(watch, "_inspect", unaware)
    launch = a_launch("/bin/sh", "-c", "dd if=/dev/zero of=/dev/null bs=200M; exit $?", memory=32 << 20)
    engine_id = (await docker_engine.launch(launch)).engine_id
    status = await next_change(docker_engine, Condition.ENDED)
    assert (status.exit_code, status.reason) == (137, PASSED)
    looked_again = await docker_engine._watch.look(engine_id)
    assert looked_again == status


async def test_container_that_the_host_ended_for_its_own_lack_of_memory_says_so(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_id = (await docker_engine.launch(a_launch("sleep", "600", memory=32 << 20))).engine_id
    said = (
        f"<6>[1.0] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset={engine_id},mems_allowed=0,global_oom,"
        f"task_memcg=/docker/{engine_id},task=sleep,pid=7,uid=0\n"
    )
    monkeypatch.setattr(kernel_log, "_read", lambda: said)
    docker_api.kill(engine_id)  # as the kernel would
    status = await next_change(docker_engine, Condition.ENDED)
    assert (status.exit_code, status.reason) == (137, kernel_log.HOST)


@pytest.mark.parametrize("log", [None, ""], ids=["nobody may read the kernel's log", "the kernel left its line out"])
async def test_reason_that_docker_tells_after_the_end_is_waited_for(
    docker_engine: DockerEngine,
    docker_api: docker.APIClient,
    a_launch: Launcher,
    monkeypatch: pytest.MonkeyPatch,
    log: str | None,
) -> None:
    inspect, looks = watch._inspect, []

    def late(api: Any, engine_id: str) -> Any:
        found = inspect(api, engine_id)
        if found and found["State"]["Status"] == "exited":
            looks.append(engine_id)
            found["State"]["OOMKilled"] = len(looks) > 2
        return found

    monkeypatch.setattr(watch, "_inspect", late)
    monkeypatch.setattr(kernel_log, "_read", lambda: log)
    launch = a_launch("sleep", "600", memory=32 << 20)
    engine_id = (await docker_engine.launch(launch)).engine_id
    docker_api.kill(engine_id)  # as the kernel would
    status = await next_change(docker_engine, Condition.ENDED)
    assert status.reason.startswith("Out of host memory")
