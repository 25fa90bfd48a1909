"""What tests of the process engine have in common."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scheduler.engines.base import Launch
from scheduler.engines.process import tree
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.runtime_environment import RuntimeEnvironment, Simulation


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


def states_of(engine: ProcessEngine, launch: Launch) -> list[str]:
    running = engine._found.running(launch.id)
    assert running is not None
    return [each.state for each in tree.descendants(running.keeper)]


def pids_of(engine: ProcessEngine, launch: Launch) -> list[int]:
    running = engine._found.running(launch.id)
    assert running is not None
    return [each.pid for each in tree.descendants(running.keeper)]
