"""Which engine a host gets, and what programs are given that must not change under them."""

from pathlib import Path

import pytest
from pytest_django import Settings

from scheduler.engines.base import EngineAway
from scheduler.engines.choose import choose
from scheduler.engines.runtime_environment import keep_copy
from tests.engines.conftest import leaks_sockets
from tests.support.dockerd import Dockerd

pytestmark = leaks_sockets


@pytest.fixture
def home(settings: Settings, tmp_path: Path, empty_shim: Path) -> Path:
    settings.GPUSHARE_HOME = tmp_path
    settings.GPUSHARE_BUILD = empty_shim.parent
    settings.GPUSHARE_DOCKER_HOST = "unix:///no/docker.sock"
    return tmp_path


async def test_auto_is_local_processes_where_there_is_no_docker(home: Path, settings: Settings) -> None:
    settings.GPUSHARE_ENGINE = "auto"
    engine = await choose(None)
    assert engine.name == "process"
    await engine.close()


async def test_docker_by_name_is_waited_for(home: Path, settings: Settings) -> None:
    settings.GPUSHARE_ENGINE = "docker"
    with pytest.raises(EngineAway, match=r"unix:///no/docker\.sock"):
        await choose(None)


@pytest.mark.docker
async def test_auto_is_docker_and_stays_docker_when_docker_is_late(
    home: Path, settings: Settings, dockerd: Dockerd
) -> None:
    settings.GPUSHARE_ENGINE = "auto"
    settings.GPUSHARE_DOCKER_HOST = dockerd.address
    engine = await choose(None)
    assert engine.name == "docker"
    await engine.close()
    settings.GPUSHARE_DOCKER_HOST = "unix:///no/docker.sock"
    with pytest.raises(EngineAway):  # its containers may be there, and must not be taken for gone
        await choose(None)


@pytest.mark.docker
async def test_auto_stays_with_local_processes_while_some_live(
    home: Path, settings: Settings, dockerd: Dockerd
) -> None:
    settings.GPUSHARE_ENGINE = "auto"
    settings.GPUSHARE_DOCKER_HOST = dockerd.address
    engine = await choose(None, {"process": ["one"]})
    assert engine.name == "process"
    await engine.close()


async def test_engine_that_cannot_see_who_lives_is_not_taken(home: Path, settings: Settings) -> None:
    settings.GPUSHARE_ENGINE = "process"
    names = [f"container-{number:03}-" + 240 * "x" for number in range(200)]
    with pytest.raises(EngineAway, match=r"200 containers \(container-000-.*GPUSHARE_ENGINE=docker") as refused:
        await choose(None, {"docker": names, "process": ["one"]})
    assert len(str(refused.value)) <= 500


def test_rebuilt_shim_does_not_change_under_a_running_program(tmp_path: Path) -> None:
    library = tmp_path / "libgpushare.so"
    library.write_bytes(b"one")
    first = keep_copy(library, tmp_path / "kept")
    library.write_bytes(b"two")
    second = keep_copy(library, tmp_path / "kept")
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")
    assert keep_copy(library, tmp_path / "kept") == second
