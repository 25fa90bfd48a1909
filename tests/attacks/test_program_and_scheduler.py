"""Programs that would hold up the scheduler, from inside Docker's containers, beside one that allocates all the while.

The same from processes of the host, and what each does: tests/scheduler/test_held_up.py. What is shown besides is that
such a program needs nothing that a container does not have.
"""

from __future__ import annotations

import asyncio
import json
import sys
import sysconfig
from pathlib import Path

import docker
import pytest
from pytest_django import Settings

from tests.support.attacks import ATTACKS, BEGIN, BYSTANDER
from tests.support.dockerd import Dockerd, build_image
from tests.support.eventually import eventually
from tests.support.host import BUILD, GIB, ROOT, Host
from web.models import Container

pytestmark = pytest.mark.docker

IMAGE = "gpushare/python:latest"
PYTHON = Path(sys.executable).resolve()
STANDARD, PACKAGES = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
CALLS = 100  # of the bystander's, during an attack


@pytest.fixture(scope="module")
def image(dockerd: Dockerd) -> str:
    """With this Python; its modules, and ours, come as volumes."""
    client = docker.APIClient(dockerd.address, version="auto")
    modules = [*STANDARD.glob("lib-dynload/_ctypes.*.so"), *PACKAGES.glob("_cffi_backend.*.so")]
    build_image(client, IMAGE, [PYTHON], mounted=[BUILD / "libgpushare.so", *modules])
    client.close()
    return IMAGE


@pytest.fixture
def roots(settings: Settings) -> list[str]:
    """The volumes, which may be mounted."""
    folders = list(dict.fromkeys(map(str, (STANDARD, PACKAGES, ROOT))))
    settings.GPUSHARE_VOLUME_ROOTS = folders
    return [f"{folder}:{folder}:ro" for folder in folders]


async def run(host: Host, program: str, image: str, roots: list[str], gpu_memory: int) -> Container:
    return await host.launch(
        f"/bin/{PYTHON.name}", "-c", program, "/run/gpushare", image=image, volumes=roots, gpu_memory=gpu_memory,
        environment={"PYTHONHOME": sys.base_prefix, "PYTHONPATH": f"{ROOT}:{PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


async def says(host: Host, container: Container, word: str) -> None:
    while word not in host.log(container):
        assert (await host.get(container)).finished_at is None, host.log(container)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("host", ["docker"], indirect=True)
async def test_a_bystander_is_answered_during_all_of_them_at_once(
    roots: list[str], host: Host, image: str, docker_api: docker.APIClient
) -> None:
    bystander = await run(host, BYSTANDER, image, roots, GIB)
    await says(host, bystander, "allocating")
    tenant, (gpu,) = host.up.broker.tenants[str(bystander.pk)], host.up.gpus.cards
    attackers = [await run(host, BEGIN + attack, image, roots, 4 * GIB) for attack in ATTACKS.values()]
    for each in attackers:
        await says(host, each, "attacking")
    before = tenant.used(gpu) // 4096
    await eventually(lambda: tenant.used(gpu) // 4096 >= before + CALLS)
    for each in attackers:
        assert (await host.get(each)).finished_at is None, host.log(each)[-1000:]
    for each in attackers:
        docker_api.kill(each.engine_id)
    for each in attackers:
        await host.returned(each)
        assert not host.up.server.connections(str(each.pk))
    docker_api.kill(bystander.engine_id, "TERM")
    await host.returned(bystander)
    took = json.loads(host.log(bystander).splitlines()[-1])
    assert len(took) >= before + CALLS
    assert not host.up.broker.state.waiting
