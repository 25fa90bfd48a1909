import asyncio
import gc
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from scheduler.engines.base import Condition, Engine, EngineError, Launch, Status
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.settings import DockerSettings
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.support.dockerd import IMAGE, Dockerd, docker_api, dockerd
from tests.support.eventually import PATIENCE, eventually

__all__ = ["docker_api", "dockerd"]


# Where nothing listens, Docker's SDK leaves its socket to the garbage collector.
leaks_sockets = pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module", autouse=True)
def only_its_own_is_collected() -> None:
    """What was there before a module's tests is no garbage of theirs: going through it took 0.2 s a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """The first to begin, so the last to end: garbage is collected while its test's warnings are still filtered."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def empty_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that can be preloaded and does nothing: engines carry the shim, they never look into it."""
    path = tmp_path_factory.mktemp("shim") / "libgpushare.so"
    subprocess.run(["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", path], check=True)
    return path


Opener = Callable[..., AbstractAsyncContextManager[DockerEngine]]
AnEngine = TypeVar("AnEngine", bound=Engine)


@asynccontextmanager
async def started(engine: AnEngine) -> AsyncIterator[AnEngine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def empty(engine: Engine) -> None:
    """Ends and removes all that it has."""
    for status in await engine.statuses():
        await engine.kill(status.engine_id)
        await removed(engine, status.engine_id)


async def removed(engine: Engine, engine_id: str) -> None:
    """Tried again while its output is being copied, as by garbage_collection.py."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await engine.remove(engine_id)
            except EngineError as error:
                if error.code != "output_left":
                    raise


async def next_change(engine: Engine, condition: Condition) -> Status:
    """The first change to this condition, of whichever container."""
    async with asyncio.timeout(PATIENCE):
        async for status in engine.changes():
            if status.condition is condition:
                return status
    raise AssertionError("the stream ended")


async def changed_to(engine: Engine, id_: str, condition: Condition) -> Status:
    """The first change of this container to this condition."""
    async with asyncio.timeout(PATIENCE):
        async for status in engine.changes():
            if (status.id, status.condition) == (id_, condition):
                return status
    raise AssertionError("the stream ended")


async def until_logged(launch: Launch, text: str) -> str:
    await eventually(lambda: launch.log_path.exists() and text in launch.log_path.read_text())
    return launch.log_path.read_text()


async def output_of(engine: DockerEngine, launch: Launch) -> str:
    """All of it: on a busy machine an end is reported a little before the last of it is copied."""
    engine_id = (await engine.launch(launch)).engine_id
    await next_change(engine, Condition.ENDED)
    await eventually(lambda: engine._watch._logs[engine_id].complete)
    return launch.log_path.read_text()


@pytest.fixture
def open_engine(tmp_path: Path, empty_shim: Path, dockerd: Dockerd) -> Opener:
    """Opens a started Docker engine, with DockerSettings' fields; opened again it is a restarted scheduler."""

    def opened(
        runtime_environment: RuntimeEnvironment | None = None, **fields: object
    ) -> AbstractAsyncContextManager[DockerEngine]:
        settings = DockerSettings(**{"address": dockerd.address, "volume_roots": (tmp_path,), **fields})
        return started(DockerEngine(tmp_path, runtime_environment or RuntimeEnvironment(empty_shim), settings))

    return opened


@pytest.fixture
async def docker_engine(open_engine: Opener) -> AsyncIterator[DockerEngine]:
    async with open_engine() as engine:
        yield engine
        await empty(engine)


@pytest.fixture
def a_launch(tmp_path: Path) -> Callable[..., Launch]:
    """Makes a launch of a command in the test image; fields can be overridden."""

    def make(*command: str, **fields: object) -> Launch:
        id_ = str(uuid.uuid4())
        sockets = tmp_path / "sockets" / id_
        sockets.mkdir(parents=True)
        settings: dict[str, object] = {
            "id": id_,
            "name": "one",
            "image": IMAGE,
            "command": command,
            "gpus": [],
            "socket_dir": sockets,
            "log_path": tmp_path / "logs" / f"{id_}.log",
            "owner": "ada",
        }
        return Launch(**{**settings, **fields})

    return make
