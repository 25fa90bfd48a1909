"""A container keeps its cards through `docker update`, which is used around each move to host memory.

Docker writes the device rules anew then, as it knows them: a node that it has from us is among them. What the hook of
NVIDIA's runtime adds is not; that one is tried last (test_gpu_access.py).
"""

from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from scheduler.engines.base import Launch
from scheduler.engines.docker import gpu_access
from scheduler.engines.docker.gpu_access import Raw
from tests.engines.conftest import Opener
from tests.support.dockerd import Dockerd

GPU = "GPU-00000000-0000-4000-8000-000000000001"
ITS, OTHER = "/dev/fuse", "/dev/loop-control"  # stand for cards: a node that Docker gives to nobody by itself
MIB = 1 << 20
pytestmark = pytest.mark.docker


@pytest.mark.skipif(not (Path(ITS).exists() and Path(OTHER).exists()), reason=f"needs {ITS} and {OTHER}")
async def test_a_program_that_starts_after_an_update_finds_its_card_and_no_other(
    open_engine: Opener, a_launch: Callable[..., Launch], dockerd: Dockerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_access, "raw", lambda: Raw({GPU: ITS}, (), {}))
    api = docker.APIClient(dockerd.address, version="auto")

    def opens(container: str, node: str) -> bool:
        made = api.exec_create(container, ["sh", "-c", f": < {node}"], privileged=False)
        api.exec_start(made["Id"])
        return bool(api.exec_inspect(made["Id"])["ExitCode"] == 0)

    async with open_engine(gpu_access="raw") as engine:
        status = await engine.launch(a_launch("sleep", "600", gpus=[GPU], memory=64 * MIB))
        for extra in (0, 256 * MIB, 0):
            await engine.add_memory(status.engine_id, extra)
            assert api.inspect_container(status.engine_id)["HostConfig"]["Memory"] == 64 * MIB + extra
            assert (opens(status.engine_id, ITS), opens(status.engine_id, OTHER)) == (True, False)
        await engine.kill(status.engine_id)
        await engine.remove(status.engine_id)
    api.close()
