"""A boot: Docker is there before the scheduler, and finds no plugin for what it is to restart.

Docker looks for it for 15 s, twice a volume, and gives up; its own start takes that long.
"""

import asyncio

import pytest

from tests.engines.conftest import leaks_sockets
from tests.plugin.conftest import IMAGE, Lab
from tests.support.dockerd import Dockerd
from tests.support.eventually import eventually
from tests.support.host import GIB

pytestmark = [pytest.mark.long, pytest.mark.docker, pytest.mark.timeout(300), leaks_sockets]

HOLD = ("workload", "--bytes", "1GiB", "--hold", "600")


async def state_of(lab: Lab, name: str) -> str:
    return (await lab.docker("inspect", "-f", "{{.State.Status}}", name)).strip().split("\n")[-1]


async def test_what_docker_is_to_restart_begins_once_the_scheduler_is_there(lab: Lab, dockerd: Dockerd) -> None:
    made = await lab.begin("always", *HOLD, more=("--restart=always",), gpu_memory="2GiB")
    await lab.says(made, "holding")
    await lab.begin("once", *HOLD, gpu_memory="1200MiB")
    ended = await lab.begin("stopped", "sleep", "600", more=("--restart=unless-stopped",), gpu_memory="100MiB")
    await lab.docker("stop", "-t", "0", "stopped")
    await eventually(lambda: ended.pk.hex not in {each.replace("-", "") for each in lab.up.broker.live_containers})
    await lab.stop()
    await asyncio.to_thread(dockerd.kill)
    lab.socket.unlink(missing_ok=True)  # it is in a folder that a boot empties
    await asyncio.to_thread(dockerd.start)
    assert await state_of(lab, "always") == "exited"
    await lab.start()
    again = await lab.running("always")
    assert again.pk != made.pk
    assert (again.image, (await lab.claim(again)).quota) == (IMAGE, 2 * GIB)

    def holds() -> bool:
        return any(each.used(gpu) >= GIB for each in lab.up.broker.live_containers.values() for gpu in each.quota)

    await eventually(holds)
    assert [await state_of(lab, name) for name in ("always", "once", "stopped")] == ["running", "exited", "exited"]
