"""Docker and the scheduler start at the same time: Docker asks for each volume that its containers have, and answers
nobody until it knows; the scheduler waits for Docker. So it answers what it can before it has found Docker. At last:
Docker starts first, and finds no plugin."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.engines.conftest import leaks_sockets
from tests.plugin.conftest import IMAGE, Lab
from tests.support.dockerd import Dockerd
from tests.support.eventually import eventually
from tests.support.host import GIB

pytestmark = [
    pytest.mark.long, pytest.mark.docker, pytest.mark.timeout(300), pytest.mark.usefixtures("docker_is_back"),
    leaks_sockets,
]  # fmt: skip

KEPT = 6
HOLD = ("workload", "--bytes", "1GiB", "--hold", "600")
LOOKED_IN_VAIN = "error looking up volume plugin"


@contextlib.asynccontextmanager
async def both_are_dead(lab: Lab, dockerd: Dockerd) -> AsyncIterator[None]:
    """The scheduler is back after it, and waited for; Docker is to be started within."""
    await lab.stop()
    await asyncio.to_thread(dockerd.kill)
    lab.socket.unlink(missing_ok=True)
    starting = asyncio.create_task(lab.start())
    try:
        yield
    finally:
        await starting
        await asyncio.wait_for(lab.up.started.wait(), 60)


def holds(lab: Lab) -> bool:
    return any(each.used(gpu) >= GIB for each in lab.up.broker.live_containers.values() for gpu in each.quota)


async def test_docker_waits_for_no_volume_of_the_containers_that_it_keeps(lab: Lab, dockerd: Dockerd) -> None:
    """A quarter of a minute for each of them would be more than this Docker is waited for."""
    for number in range(KEPT):
        volume = lab.volume(gpu_memory="100MiB")
        await lab.docker("run", "--name", f"kept{number}", "--network=none", *volume, IMAGE, "true")
    await lab.nothing_is_held()
    said_before = len((dockerd.folder / "log").read_text())
    async with both_are_dead(lab, dockerd):
        await asyncio.to_thread(dockerd.start)
    assert LOOKED_IN_VAIN not in (dockerd.folder / "log").read_text()[said_before:]
    await lab.docker("start", "-a", "kept0")
    await lab.nothing_is_held()


async def test_what_docker_is_to_restart_begins_once_the_scheduler_has(lab: Lab, dockerd: Dockerd) -> None:
    """Docker mounts before it answers anybody: it is refused in words, and asked to start it again."""
    made = await lab.begin("always", *HOLD, more=("--restart=always",), gpu_memory="2GiB")
    await lab.says(made, "holding")
    async with both_are_dead(lab, dockerd):
        await eventually(lab.socket.exists)
        await asyncio.to_thread(dockerd.start)

    await eventually(lambda: holds(lab))
    again = await lab.running("always")
    assert again.pk != made.pk
    assert (again.image, (await lab.claim(again)).quota) == (IMAGE, 2 * GIB)


async def test_without_docker_it_answers_from_the_database_and_puts_off_a_mount(lab: Lab, dockerd: Dockerd) -> None:
    await lab.docker("volume", "create", "-d", lab.driver, "-o", "gpu_memory=2GiB", "named")
    made = await lab.begin("mine", *HOLD, volume="named", gpu_memory="2GiB")
    place = (await lab.call("VolumeDriver.Path", Name="named"))["Mountpoint"]
    assert made.pk.hex in place.replace("-", "")
    async with both_are_dead(lab, dockerd):
        await eventually(lab.socket.exists)
        assert (await lab.call("Plugin.Activate"))["Implements"] == ["VolumeDriver"]
        assert (await lab.call("VolumeDriver.Capabilities"))["Capabilities"] == {"Scope": "local"}
        volume = {"Name": "named", "Mountpoint": place, "Status": {"gpu_memory": "2GiB"}}
        assert (await lab.call("VolumeDriver.Get", Name="named"))["Volume"] == volume
        assert (await lab.call("VolumeDriver.List"))["Volumes"] == [volume]
        assert await lab.call("VolumeDriver.Path", Name="named") == {"Mountpoint": place, "Err": ""}
        assert "no volume" in (await lab.call("VolumeDriver.Get", Name="other"))["Err"]
        assert await lab.call("VolumeDriver.Create", Name="new", Opts={"gpu_memory": "1GiB"}) == {"Err": ""}
        assert "new" in [each["Name"] for each in (await lab.call("VolumeDriver.List"))["Volumes"]]
        assert "1 TiB" in (await lab.call("VolumeDriver.Create", Name="bad", Opts={"gpu_memory": "1TiB"}))["Err"]
        for call in ("Mount", "Remove"):
            refused = await lab.call(f"VolumeDriver.{call}", Name="new", ID="m")
            assert refused["Err"] == "gpushare: The scheduler has not started yet. Try again shortly."
        assert not lab.up.started.is_set()
        await asyncio.to_thread(dockerd.start)
    assert (await lab.call("VolumeDriver.Remove", Name="new"))["Err"] == ""
    await lab.until(made, "failed")  # it died with Docker
    await lab.nothing_is_held()


async def state_of(lab: Lab, name: str) -> str:
    return (await lab.docker("inspect", "-f", "{{.State.Status}}", name)).strip().split("\n")[-1]


async def test_what_docker_is_to_restart_begins_once_the_scheduler_is_there(lab: Lab, dockerd: Dockerd) -> None:
    """A boot: Docker looks for the plugin for 15 s, twice a volume, and gives up; its own start takes that long."""
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
    await eventually(lambda: holds(lab))
    assert [await state_of(lab, name) for name in ("always", "once", "stopped")] == ["running", "exited", "exited"]
