"""Docker without root, and an appliance of the very user whose engine it is: what holds there, and what is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.test_user_namespaces import HOLDS, LAB, OUT_OF_MEMORY, host_process, launch, used
from tests.support.appliance import Appliance, until
from tests.support.dockerd import build_workload
from tests.support.host import MIB
from tests.support.rootless import ADA, Rootless, rootless, why_not_rootless

__all__ = ["launch"]
pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def engine() -> Iterator[Rootless]:
    if why_not := why_not_rootless():
        pytest.skip(why_not)
    with rootless() as engine:
        build_workload(engine.address, LAB)
        yield engine


@pytest.fixture(scope="module")
def appliance(engine: Rootless) -> Iterator[Appliance]:
    running = Appliance(
        engine.home,
        within=engine.as_ada,
        GPUSHARE_ENGINE="docker",
        GPUSHARE_DOCKER_HOST=engine.address,
        GPUSHARE_VOLUME_ROOTS=str(engine.folder / "her"),
    )
    yield running
    running.close()


def refused(call: Callable[[], Any]) -> dict[str, Any]:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        call()
    error: dict[str, Any] = caught.value.response.json()["error"]
    return error


def test_a_container_gets_its_quota_and_is_refused_beyond_it_and_is_killed(appliance, engine, launch):
    holder = launch("holds", *HOLDS, gpu_memory="512MiB")
    until(lambda: used(appliance, "holds") >= 300 * MIB)
    assert Path(f"/proc/{host_process(engine, holder)}").stat().st_uid == ADA, "root inside is the user outside"
    launch("greedy", "workload", "--bytes", "400MiB", gpu_memory="256MiB")
    until(lambda: appliance.containers(name="greedy")[0]["exit_code"] == OUT_OF_MEMORY)
    launch("waits", "workload", "--bytes", "600MiB", "--hold", "600", gpu_memory="700MiB")
    until(lambda: appliance.named("waits")["state"] == "suspended")
    appliance.api("POST", f"containers/{holder['id']}/kill/", {})
    until(lambda: appliance.named("waits")["state"] == "running" and used(appliance, "waits") >= 600 * MIB)
    assert appliance.containers(name="holds")[0]["state"] == "killed"


def test_what_such_a_user_cannot_give_is_reported(appliance, engine, launch):
    output = Path(appliance._log.name).read_text()
    assert "no control group for host memory, CPU, processes: containers are not limited there" in output
    assert "containers get named volumes, but no folders of the host" in output
    error = refused(lambda: launch("folder", "true", gpu_memory="16MiB", volumes=[f"{engine.folder}/her:/d"]))
    assert (error["code"], error["field"]) == ("no_folders", "volumes")
    kept = launch("kept", *HOLDS, gpu_memory="512MiB", volumes=["notes:/d"])
    until(lambda: used(appliance, "kept") >= 300 * MIB)
    error = refused(lambda: appliance.api("POST", f"containers/{kept['id']}/pause/", {}))
    assert error["code"] == "not_supported"
    assert "runs without root, and has no control groups" in error["message"]
    assert appliance.named("kept")["state"] == "running"


def test_a_scheduler_of_roots_is_refused_what_it_launches_there_with_a_sentence(engine, tmp_path):
    appliance = Appliance(tmp_path / "var", GPUSHARE_ENGINE="docker", GPUSHARE_DOCKER_HOST=engine.address)
    try:
        error = refused(lambda: appliance.launch("true", image=LAB, gpu_memory="16MiB"))
        assert error["code"] == "folder_closed"
        assert f"Docker may not enter {appliance.home}/sockets/" in error["message"]
        assert "must run as the same user as this scheduler" in error["message"]
    finally:
        appliance.close()
