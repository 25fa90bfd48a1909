from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dockerd import Dockerd, build_workload, docker_api, dockerd
from tests.support.host import Host, a_host
from tests.support.past import built

__all__ = ["docker_api", "dockerd"]

ATTACKS = "gpushare/attacks:latest"


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs that get past the shim."""
    return built(tmp_path_factory.mktemp("past"))


@pytest.fixture(scope="session")
def attacks_image(dockerd: Dockerd, past: Path) -> str:
    """An image with the workload and the programs of `past`, in /bin."""
    build_workload(dockerd.address, ATTACKS, sorted(past.iterdir()))
    return ATTACKS


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
async def host(
    request: pytest.FixtureRequest,
    transactional_db: None,
    settings: Any,
    tmp_path_factory: pytest.TempPathFactory,
    past: Path,
) -> AsyncIterator[Host]:
    """A host with one simulated GPU of 5 GiB, by each engine. `host.programs`: where containers see those of `past`."""
    docker_host = request.getfixturevalue("dockerd").address if request.param == "docker" else ""
    image = request.getfixturevalue("attacks_image") if docker_host else "local"
    async with a_host(settings, tmp_path_factory.mktemp("host"), docker=docker_host) as host:
        host.programs = past
        if docker_host:
            host.image, host.workload, host.programs = image, Path("/bin/workload"), Path("/bin")
        yield host
