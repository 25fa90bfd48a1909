"""Docker is killed, while a container runs and between a mount and the start: no Unmount tells of it.

Docker's list does once it is back. `docker start` then comes with the ID of the mount that was never taken away.
"""

import asyncio

import pytest

from tests.engines.conftest import leaks_sockets
from tests.plugin.conftest import IMAGE, Lab
from tests.support.dockerd import Dockerd
from tests.support.eventually import eventually
from tests.support.host import GIB, query
from web.models import Container

pytestmark = [pytest.mark.long, pytest.mark.docker, pytest.mark.usefixtures("docker_is_back"), leaks_sockets]


async def kill_and_start(dockerd: Dockerd) -> None:
    await asyncio.to_thread(dockerd.kill)
    await asyncio.to_thread(dockerd.start)


async def test_what_died_with_docker_is_given_back(lab: Lab, dockerd: Dockerd) -> None:
    made = await lab.begin("mine", "workload", "--bytes", "1GiB", "--hold", "600", gpu_memory="2GiB")
    await kill_and_start(dockerd)
    made = await lab.until(made, "failed")
    assert made.exit_code == 137
    await lab.nothing_is_held()
    await lab.docker("start", "mine")
    again = await lab.running("mine")
    assert again.pk != made.pk
    assert (await lab.claim(again)).quota == 2 * GIB


async def test_what_was_mounted_and_not_started_is_given_back(lab: Lab, dockerd: Dockerd) -> None:
    await lab.docker("create", "--name", "mine", "--network=none", *lab.volume("v", gpu_memory="2GiB"), IMAGE, "true")
    assert (await lab.call("VolumeDriver.Mount", Name="v", ID="m"))["Err"] == ""
    assert len(lab.up.broker.live_containers) == 1
    await kill_and_start(dockerd)
    await lab.nothing_is_held()
    await lab.docker("start", "-a", "mine")
    await lab.nothing_is_held()
    started = await query(Container.objects.exclude(started_at=None).get)
    assert (started.name, started.exit_code) == ("mine", 0)


async def test_what_docker_always_restarts_has_its_quota_again(lab: Lab, dockerd: Dockerd) -> None:
    """It mounts before it lists, with the same ID: what was the container's before goes on being its."""
    words = ("workload", "--bytes", "1GiB", "--hold", "600")
    made = await lab.begin("mine", *words, more=("--restart=always",), gpu_memory="2GiB")
    await lab.says(made, "holding")
    before = set(lab.up.broker.sessions)
    await kill_and_start(dockerd)

    def holds() -> bool:
        """One container, by processes that were not there before."""
        live_containers, sessions = list(lab.up.broker.live_containers.values()), set(lab.up.broker.sessions)
        used = [each.used(gpu) for each in live_containers for gpu in each.quota if each.started_at]
        return bool(sessions) and not before & sessions and len(live_containers) == 1 and used[0] >= GIB

    await eventually(holds)
    (made,) = await lab.living()
    assert (made.name, made.image, made.state) == ("mine", IMAGE, "running")
    assert (await lab.claim(made)).quota == 2 * GIB
    await lab.docker("rm", "-f", "mine")
    await lab.nothing_is_held()
