"""The CDI specifications of claims, applied to real containers of a real engine: the quota holds."""

import asyncio
import os
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.kubernetes.cluster import runtime
from tests.kubernetes.cluster.rules import JSON
from tests.kubernetes.conftest import Lab
from tests.support.dockerd import Dockerd, build_workload, clear, docker_api, have_dockerd, private
from tests.support.eventually import eventually
from tests.support.host import BUILD, query
from web.models import Container

__all__ = ["docker_api"]
pytestmark = [pytest.mark.docker, pytest.mark.timeout(180)]
IMAGE = "gpushare/claims:latest"
OUT_OF_MEMORY = 2  # workload's exit code


@pytest.fixture(scope="module")
def engine() -> Iterator[Dockerd]:
    if why_not := have_dockerd():
        pytest.skip(why_not)
    with private() as found:
        client = docker.APIClient(found.address, version="auto")
        build_workload(found.address, IMAGE)
        yield found
        clear(client)
        client.close()


class Pod:
    """A container with these CDI devices, as the kubelet has its runtime start it."""

    def __init__(self, engine: Dockerd, cdi: Path, name: str, ids: list[str], *words: str) -> None:
        self._env = {**os.environ, "DOCKER_HOST": engine.address}
        self._words = ["run", "--name", name, "--network=none", *runtime.flags(cdi, ids), IMAGE, *words]
        self.name = name

    async def start(self) -> "Pod":
        self.process = await asyncio.create_subprocess_exec(
            "docker", *self._words, env=self._env, stdout=PIPE, stderr=STDOUT
        )
        return self

    async def ended(self) -> tuple[int, str]:
        out, _ = await asyncio.wait_for(self.process.communicate(), 100)
        return self.process.returncode or 0, out.decode()

    async def kill(self) -> None:
        done = await asyncio.create_subprocess_exec("docker", "kill", self.name, env=self._env, stdout=PIPE)
        assert await done.wait() == 0
        await self.ended()


async def of(lab: Lab, claim: JSON) -> Container:
    return await query(Container.objects.live().get, mount=claim["metadata"]["uid"])


async def test_a_container_with_the_claim_has_its_quota_and_no_more(lab: Lab, engine: Dockerd) -> None:
    await lab.published()
    claim = await lab.allocator.claim("2Gi")
    ids = (await lab.prepare(claim))["gpu0"]
    fits = await Pod(engine, lab.cdi, "fits", ids, "workload", "--bytes", "1GiB", "--check", "1MiB").start()
    code, out = await fits.ended()
    assert (code, "done" in out) == (0, True), out
    container = await of(lab, claim)
    await eventually(lambda: not lab.up.broker.live_containers[str(container.pk)].sessions)
    lab.up.report.publish()
    await lab.up.store.flush()
    assert (await lab.claim(container)).peak > 1 << 30
    over = await Pod(engine, lab.cdi, "over", ids, "workload", "--bytes", "2GiB").start()
    assert (await over.ended())[0] == OUT_OF_MEMORY
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_two_containers_share_a_claim_and_its_quota(lab: Lab, engine: Dockerd) -> None:
    await lab.published()
    claim = await lab.allocator.claim("3Gi")
    ids = (await lab.prepare(claim))["gpu0"]
    first = await Pod(engine, lab.cdi, "one", ids, "workload", "--bytes", "2GiB", "--hold", "600").start()
    container = await of(lab, claim)
    await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].sessions)
    (gpu,) = lab.up.gpus.cards
    await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].used(gpu) > 2 << 30)
    second = await Pod(engine, lab.cdi, "two", ids, "workload", "--bytes", "2GiB").start()
    assert (await second.ended())[0] == OUT_OF_MEMORY
    await first.kill()
    third = await Pod(engine, lab.cdi, "three", ids, "workload", "--bytes", "2GiB").start()
    assert (await third.ended())[0] == 0
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_what_a_container_holds_survives_a_restart_of_the_driver_and_goes_with_it(
    lab: Lab, engine: Dockerd
) -> None:
    await lab.published()
    claim = await lab.allocator.claim("3Gi")
    ids = (await lab.prepare(claim))["gpu0"]
    pod = await Pod(engine, lab.cdi, "stays", ids, "workload", "--bytes", "2GiB", "--hold", "600").start()
    container, (gpu,) = await of(lab, claim), lab.up.gpus.cards
    await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].used(gpu) > 2 << 30)
    await lab.stop()
    await lab.start()
    assert lab.up.broker.live_containers[str(container.pk)].used(gpu) > 2 << 30
    await pod.kill()
    await eventually(lambda: not lab.up.broker.live_containers[str(container.pk)].used(gpu))
    await lab.published()
    await lab.unprepare(claim)
    await lab.nothing_is_held()


async def test_where_the_card_is_short_a_container_waits_and_goes_on(lab: Lab, engine: Dockerd) -> None:
    """Somebody whom the cluster knows nothing of has taken a part of the card."""
    await lab.published()
    claim = await lab.allocator.claim("4Gi")
    ids = (await lab.prepare(claim))["gpu0"]
    container, (gpu,) = await of(lab, claim), lab.up.gpus.cards
    environment = {**os.environ, **lab.up.gpus.environment}
    stranger = await asyncio.create_subprocess_exec(
        str(BUILD / "workload"), "--bytes", "3GiB", "--hold", "600", env=environment, stdout=PIPE
    )
    try:
        await eventually(lambda: lab.up.broker.state.gpus[gpu].capacity < 3 << 30)
        await eventually(lambda: [each for each in lab.allocator.devices() if each.get("taints")])
        pod = await Pod(engine, lab.cdi, "waits", ids, "workload", "--bytes", "3GiB").start()
        await lab.until(container, "suspended")
    finally:
        stranger.kill()
        await stranger.wait()
    code, out = await pod.ended()
    assert (code, "done" in out) == (0, True), out
    await lab.unprepare(claim)
    assert (await lab.get(container)).suspended_seconds > 0
    await eventually(lambda: not [each for each in lab.allocator.devices() if each.get("taints")])


async def test_a_pod_is_paused_by_its_control_group_goes_on_and_is_ended_while_paused(
    lab: Lab, engine: Dockerd
) -> None:
    await lab.published()
    claim = await lab.allocator.claim("2Gi")
    made = await lab.pods.make("stops", {"main": claim}, others=("proxy",))
    ((ids,),) = [answer.values() for answer in await lab.pods.start(made)]
    pod = await Pod(engine, lab.cdi, "stops", ids, "workload", "--bytes", "1GiB", "--hold", "600").start()
    container, (gpu,) = await of(lab, claim), lab.up.gpus.cards
    await eventually(lambda: lab.up.broker.live_containers[str(container.pk)].used(gpu) > 1 << 30)
    (pid,) = await running(engine, "stops")
    for _ in range(2):
        assert (await lab.command("pause", container)).outcome == "done"
        assert state_of(pid) == "FROZEN"
        await lab.stop()
        await lab.start()
        assert (await lab.get(container)).state == "paused"
        assert (await lab.command("resume", container)).outcome == "done"
        assert state_of(pid) == "THAWED"
    assert (await lab.command("pause", container)).outcome == "done"
    freezer(pid).write_text("THAWED")  # somebody else has let it go on
    await lab.until(container, "running")
    assert (await lab.command("pause", container)).outcome == "done"
    await lab.published()

    async def stop(found: JSON) -> None:
        await pod.kill()

    lab.pods.stop = stop
    await lab.command("kill", container)
    await lab.until(container, "killed")
    await lab.nothing_is_held()


async def running(engine: Dockerd, name: str) -> list[int]:
    client = docker.APIClient(engine.address, version="auto")
    try:
        return [int(row[1]) for row in client.top(name)["Processes"]]
    finally:
        client.close()


def freezer(pid: int) -> Path:
    """Of version 1, as this test's machines have."""
    (path,) = [
        line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if ":freezer:" in line
    ]
    return Path(f"/sys/fs/cgroup/freezer{path}/freezer.state")


def state_of(pid: int) -> str:
    return freezer(pid).read_text().strip()
