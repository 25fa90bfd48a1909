"""What tests of the process engine have in common."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.engines.base import Condition, Launch, Status
from scheduler.engines.process import tree
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.runtime_environment import RuntimeEnvironment, Simulation
from tests.support.eventually import eventually


@pytest.fixture
def runtime_environment(tmp_path: Path, empty_shim: Path) -> RuntimeEnvironment:
    return RuntimeEnvironment(empty_shim, Simulation(tmp_path / "sim", tmp_path / "card" / "state"))


@pytest.fixture
async def engine(tmp_path: Path, runtime_environment: RuntimeEnvironment) -> AsyncIterator[ProcessEngine]:
    engine = ProcessEngine(tmp_path / "processes", runtime_environment)
    await engine.start()
    yield engine
    for status in await engine.statuses():
        await engine.kill(status.engine_id)
    await engine.close()


def a_launch(tmp_path: Path, *command: str, **fields: object) -> Launch:
    id_ = str(uuid.uuid4())
    settings: dict[str, object] = {
        "id": id_,
        "name": "one",
        "image": "local",
        "command": command,
        "gpus": ["GPU-1", "GPU-2"],
        "socket_dir": tmp_path / "sockets" / id_,
        "log_path": tmp_path / "logs" / f"{id_}.log",
    }
    return Launch(**{**settings, **fields})


async def next_change(engine: ProcessEngine, condition: Condition) -> Status:
    async with asyncio.timeout(60):
        async for status in engine.changes():
            if status.condition is condition:
                return status
    raise AssertionError("the stream ended")


async def until_logged(launch: Launch, text: str) -> str:
    await eventually(lambda: launch.log_path.exists() and text in launch.log_path.read_text())
    return launch.log_path.read_text()


def states_of(engine: ProcessEngine, launch: Launch) -> list[str]:
    running = engine._found.running(launch.id)
    assert running is not None
    return [each.state for each in tree.descendants(running.keeper)]


def pids_of(engine: ProcessEngine, launch: Launch) -> list[int]:
    running = engine._found.running(launch.id)
    assert running is not None
    return [each.pid for each in tree.descendants(running.keeper)]
