"""The Docker engine against a real dockerd: starting, pausing, ending, and what a container looks like inside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from scheduler.engines.base import Condition, EngineError, Launch, Status
from scheduler.engines.docker.engine import DockerEngine
from tests.support.eventually import eventually

pytestmark = pytest.mark.docker
Launcher = Callable[..., Launch]


async def next_change(engine: DockerEngine, condition: Condition) -> Status:
    async with asyncio.timeout(60):
        async for status in engine.changes():
            if status.condition is condition:
                return status
    raise AssertionError("the stream ended")


async def output_of(engine: DockerEngine, launch: Launch) -> str:
    """All of it: on a busy machine an end is told a little before the last of it is copied."""
    engine_id = (await engine.launch(launch)).engine_id
    await next_change(engine, Condition.ENDED)
    await eventually(lambda: engine._watch._logs[engine_id].complete)
    return launch.log_path.read_text()


async def test_output_and_exit_code_are_the_programs_own(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    launch = a_launch("/bin/sh", "-c", "echo out; echo err >&2; exit 7")
    assert sorted((await output_of(docker_engine, launch)).splitlines()) == ["err", "out"]
    (ended,) = await docker_engine.statuses()
    assert (ended.id, ended.condition, ended.exit_code) == (launch.id, Condition.ENDED, 7)


async def test_pause_resume_and_kill_are_told_and_idempotent(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    engine_id = (await docker_engine.launch(a_launch("sleep", "600"))).engine_id
    await docker_engine.pause(engine_id)
    await docker_engine.pause(engine_id)
    assert (await next_change(docker_engine, Condition.PAUSED)).engine_id == engine_id
    await docker_engine.resume(engine_id)
    await docker_engine.resume(engine_id)
    await next_change(docker_engine, Condition.RUNNING)
    await docker_engine.kill(engine_id)
    await docker_engine.kill(engine_id)
    assert (await next_change(docker_engine, Condition.ENDED)).exit_code == 137
    for act in (docker_engine.pause, docker_engine.resume):
        with pytest.raises(EngineError, match="has ended"):
            await act(engine_id)


@pytest.mark.parametrize("grace", [0.0, 0.3])
async def test_paused_container_can_be_killed(docker_engine: DockerEngine, a_launch: Launcher, grace: float) -> None:
    # As the first process it has no default action for SIGTERM.
    engine_id = (await docker_engine.launch(a_launch("sleep", "600", init=False))).engine_id
    await docker_engine.pause(engine_id)
    await docker_engine.kill(engine_id, grace=grace)
    assert (await next_change(docker_engine, Condition.ENDED)).exit_code == 137


async def test_kill_with_grace_lets_a_program_end_by_itself(docker_engine: DockerEngine, a_launch: Launcher) -> None:
    script = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    launch = a_launch("/bin/sh", "-c", script)
    engine_id = (await docker_engine.launch(launch)).engine_id
    await eventually(lambda: launch.log_path.exists() and "ready" in launch.log_path.read_text())
    await docker_engine.kill(engine_id, grace=60)
    assert (await next_change(docker_engine, Condition.ENDED)).exit_code == 3
    await eventually(lambda: docker_engine._watch._logs[engine_id].complete)  # an end may be told before it
    assert launch.log_path.read_text() == "ready\nbye\n"
