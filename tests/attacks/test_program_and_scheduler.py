"""Programs that would hold up the scheduler, from inside Docker's containers, beside one that allocates all the while.

The same from processes of the host, and what each does: tests/scheduler/test_held_up.py. What is shown besides is that
such a program needs nothing that a container does not have.
"""

import json

import docker
import pytest
from pytest_django import Settings

from tests.support import inside
from tests.support.attacks import ATTACKS, BEGIN, BYSTANDER
from tests.support.dockerd import Dockerd
from tests.support.eventually import eventually
from tests.support.host import GIB, Host
from web.models import Container

pytestmark = pytest.mark.docker

CALLS = 100  # of the bystander's, during an attack


@pytest.fixture
def image(dockerd: Dockerd, settings: Settings) -> None:
    inside.build(dockerd.address)
    settings.GPUSHARE_VOLUME_ROOTS = inside.ROOTS


async def run(host: Host, program: str, gpu_memory: int) -> Container:
    return await host.launch(*inside.words(program, inside.SOCKETS), **inside.FIELDS, gpu_memory=gpu_memory)


async def says(host: Host, container: Container, word: str) -> None:
    async def said() -> bool:
        assert (await host.get(container)).finished_at is None or word in host.log(container), host.log(container)
        return word in host.log(container)

    await eventually(said)


@pytest.mark.parametrize("host", ["docker"], indirect=True)
async def test_a_bystander_is_answered_during_all_of_them_at_once(
    image: None, host: Host, docker_api: docker.APIClient
) -> None:
    bystander = await run(host, BYSTANDER, GIB)
    await says(host, bystander, "allocating")
    live, (gpu,) = host.up.broker.live_containers[str(bystander.pk)], host.up.gpus.cards
    attackers = [await run(host, BEGIN + attack, 4 * GIB) for attack in ATTACKS.values()]
    for each in attackers:
        await says(host, each, "attacking")
    before = live.used(gpu) // 4096
    await eventually(lambda: live.used(gpu) // 4096 >= before + CALLS)
    for each in attackers:
        assert (await host.get(each)).finished_at is None, host.log(each)[-1000:]
    for each in attackers:
        docker_api.kill(each.engine_id)
    for each in attackers:
        await host.returned(each)
        assert not host.up.server.connections(str(each.pk))
    docker_api.kill(bystander.engine_id, "TERM")
    await host.returned(bystander)
    await eventually(lambda: host.log(bystander).endswith("]\n"))  # its end may be reported before its output is copied
    took = json.loads(host.log(bystander).splitlines()[-1])
    assert len(took) >= before + CALLS
    assert not host.up.broker.state.waiting
