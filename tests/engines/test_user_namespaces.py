"""Docker with `userns-remap`: root in a container is nobody on the host, and sharing works as without it."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import httpx
import pytest

from tests.support.appliance import Appliance, until
from tests.support.dockerd import SHIFTED, Dockerd, build_workload, have_dockerd, private
from tests.support.eventually import PATIENCE
from tests.support.host import MIB

pytestmark = pytest.mark.docker

LAB = "gpushare/lab:latest"
HOLDS = ("workload", "--bytes", "300MiB", "--hold", "600")
OUT_OF_MEMORY = 2  # workload's exit code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is mounted in it is seen by the engine, which has mounts of its own here, as it is on a usual host."""
    if why_not := have_dockerd():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("remapped")
    for words in (["--bind", folder, folder], ["--make-shared", folder]):
        subprocess.run(["mount", *words], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def remapped(folder: Path) -> Iterator[Dockerd]:
    with private(remapped=True) as engine:
        build_workload(engine.address, LAB)
        yield engine


@pytest.fixture(scope="module")
def appliance(remapped: Dockerd, folder: Path) -> Iterator[Appliance]:
    running = Appliance(
        folder / "var",
        gpus="sim:1x1GiB",
        GPUSHARE_ENGINE="docker",
        GPUSHARE_DOCKER_HOST=remapped.address,
        GPUSHARE_VOLUME_ROOTS=str(folder),
    )
    yield running
    running.close()


@pytest.fixture
def launch(appliance: Appliance) -> Iterator[Callable[..., dict[str, Any]]]:
    """Launches; what still runs at the end is killed."""
    yield lambda name, *command, **fields: appliance.launch(*command, image=LAB, name=name, **fields)
    appliance.end_all()


def used(appliance: Appliance, name: str) -> int:
    return int(appliance.named(name)["gpus"][0]["used"])


def output(appliance: Appliance, container: dict[str, Any]) -> str:
    path = f"{appliance.url}/api/v1/containers/{container['id']}/logs/"
    return httpx.get(path, headers={"Authorization": f"Token {appliance.token}"}, timeout=30).text


def host_process(remapped: Dockerd, container: dict[str, Any]) -> int:
    client = docker.APIClient(remapped.address, version="auto")
    try:
        return int(client.inspect_container(container["engine_id"])["State"]["Pid"])
    finally:
        client.close()


def test_root_inside_is_nobody_outside_and_allocates_up_to_its_quota(appliance, remapped, launch):
    holder = launch("holds", *HOLDS, gpu_memory="512MiB")
    until(lambda: used(appliance, "holds") >= 300 * MIB)
    assert Path(f"/proc/{host_process(remapped, holder)}").stat().st_uid == SHIFTED
    launch("greedy", "workload", "--bytes", "400MiB", gpu_memory="256MiB")
    until(lambda: appliance.containers(name="greedy")[0]["exit_code"] == OUT_OF_MEMORY)


def test_who_waits_goes_on_when_another_ends(appliance, launch):
    first = launch("first", *HOLDS, gpu_memory="700MiB", guaranteed=True)
    until(lambda: used(appliance, "first") >= 300 * MIB)
    launch("second", "workload", "--bytes", "600MiB", "--hold", "600", gpu_memory="700MiB")
    until(lambda: appliance.named("second")["state"] == "suspended")
    appliance.api("POST", f"containers/{first['id']}/kill/", {})
    until(lambda: appliance.named("second")["state"] == "running" and used(appliance, "second") >= 600 * MIB)


def test_a_new_scheduler_takes_over_what_runs_in_another_user_namespace(appliance, launch):
    launch("stays", *HOLDS, gpu_memory="512MiB")
    until(lambda: used(appliance, "stays") >= 300 * MIB)
    before = appliance.parts()["scheduler"]
    os.kill(before, signal.SIGKILL)
    until(lambda: appliance.parts().get("scheduler", before) != before)
    until(lambda: httpx.get(f"{appliance.url}/readyz", timeout=PATIENCE).status_code == 200)
    # For a moment there may be the context by which the new one has measured what a context takes.
    until(lambda: [gpu["foreign"] for gpu in appliance.api("GET", "gpus/")["results"]] == [0])
    assert used(appliance, "stays") >= 300 * MIB
    launch("too-much", "workload", "--bytes", "700MiB", gpu_memory="800MiB")
    until(lambda: appliance.named("too-much")["state"] == "suspended")


def test_a_volume_is_written_as_its_owner_and_nobody_elses_is(appliance, launch):
    folders = {name: appliance.home.parent / name for name in ("theirs", "roots")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "kept").write_text("as it was")
    for path in (folders["theirs"], folders["theirs"] / "kept"):
        os.chown(path, SHIFTED, SHIFTED)
    volumes = [f"{folder}:/{name}" for name, folder in folders.items()] + ["notes:/named"]
    words = "echo new > /theirs/kept; echo new > /named/kept; cat /named/kept; echo new > /roots/kept"
    made = launch("writes", "sh", "-c", f"{words} || echo refused", volumes=volumes)
    until(lambda: "new\n" in output(appliance, made) and "refused" in output(appliance, made))
    assert [(folder / "kept").read_text() for folder in folders.values()] == ["new\n", "as it was"]
    assert (folders["theirs"] / "kept").stat().st_uid == SHIFTED
