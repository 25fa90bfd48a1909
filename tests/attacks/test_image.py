"""What comes out of an image: settings, checks, volumes and links of its author's, none of which undoes the quota.

A container beside it asks for memory all the while. Variable by variable, and what Docker is asked for:
tests/engines/test_docker_inside.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import docker
import pytest

from tests.scheduler.test_held_up import bystander
from tests.support.dockerd import Dockerd, build_workload
from tests.support.host import GIB, Host
from web.models import Command

pytestmark = pytest.mark.docker
ESCAPE = "\x1b]52;c;ZXZpbA==\x07"  # writes the clipboard of whoever shows it on a terminal


@dataclass(frozen=True)
class Hostile:
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    also: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)


IMAGES = {
    "settings": Hostile(
        environment={
            "LD_PRELOAD": "", "LD_LIBRARY_PATH": "/tmp", "LD_AUDIT": "/tmp/x.so", "LD_DEBUG": "all", "LD_BIND_NOW": "1",
            "GLIBC_TUNABLES": "glibc.rtld.nns=1", "GPUSHARE_SOCKET": "/tmp/x", "GPUSHARE_SIM": "/tmp/x",
            "GPUSHARE_MEMORY_LIMIT": "99999999999999", "CUDA_VISIBLE_DEVICES": "9", "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_INJECTION64_PATH": "/tmp/x.so", "NVIDIA_VISIBLE_DEVICES": "all", "ld_preload": "/tmp/x.so",
        }
    ),
    "checks": Hostile(
        also=["HEALTHCHECK --interval=1s CMD touch /tmp/looked", "ONBUILD RUN false", "EXPOSE 1-6000"],
    ),
    "volumes over what is ours": Hostile(also=["VOLUME /run /run/gpushare /run/gpushare-lib /etc /dev/shm"]),
    "links for what is ours": Hostile(
        links={"run": "/tmp/run", "etc/ld.so.preload": "/tmp/preload", "dev": "/tmp/dev", "proc": "/tmp", "sys": "/"},
    ),
    "links out of the container": Hostile(
        links={"run/gpushare": "../../../../../tmp", "etc": "/proc/1/root/etc", "run/gpushare-lib": "/proc/1/cwd"},
    ),
    "labels": Hostile(
        labels={
            "com.nvidia.memory.limit": "9999TiB", "com.gpushare.container": "x", "com.gpushare.owner": "root",
            "com.gpushare.home": "/", "com.gpushare.log": "/etc/passwd", "com.gpushare.tty": "yes", "x": "y" * 10_000,
        }
    ),
    "somebody and somewhere": Hostile(also=["USER 65534:65534", "WORKDIR /run/gpushare", "ENTRYPOINT []"]),
}  # fmt: skip


@pytest.fixture
def image(dockerd: Dockerd, request: pytest.FixtureRequest) -> str:
    name, hostile = f"gpushare/hostile-{list(IMAGES).index(request.param)}:latest", IMAGES[request.param]
    build_workload(
        dockerd.address, name,
        labels=hostile.labels, environment=hostile.environment, also=hostile.also, links=hostile.links,
    )  # fmt: skip
    return name


@pytest.mark.parametrize("host", ["docker"], indirect=True)
@pytest.mark.parametrize("image", IMAGES, indirect=True)
async def test_no_image_undoes_the_quota_or_reaches_the_host(host: Host, image: str) -> None:
    """A program gets its quota, one that asks for more is refused, or the image is refused with a sentence."""
    async with bystander(host):
        container, command = await host.start_launch(
            "workload", "--bytes", "512MiB", image=image, gpu_memory=GIB, working_dir="/"
        )
        command = await host.answer(command)
        if command.outcome != Command.Outcome.DONE:
            assert command.code in {"cannot_start", "volume_in_the_way"}
            assert command.message
            return
        await host.until(container, "exited")
        greedy = await host.launch("workload", "--bytes", "2GiB", image=image, gpu_memory=GIB, working_dir="/")
        await host.until(greedy, "failed")
    claims = [await host.returned(each) for each in (container, greedy)]
    assert 512 << 20 <= claims[0].peak <= GIB, "it was under the shim"
    assert claims[1].peak < GIB


@pytest.mark.parametrize("host", ["docker"], indirect=True)
@pytest.mark.parametrize("limit", ["9999TiB", "-1", "0", "1e999", "x" * 5000, "½", ESCAPE, "GiB", "1GiB\nx", "1\0GiB"])
async def test_a_limit_that_an_image_asks_for_is_a_size_within_bounds_or_a_sentence(
    host: Host, dockerd: Dockerd, limit: str
) -> None:
    client = docker.APIClient(dockerd.address, version="auto")
    labels = {"com.nvidia.memory.limit": limit}
    try:
        base = client.inspect_image(host.image)["Id"]
        made = client.create_container(base, ["true"], labels=labels)
        client.commit(made, "gpushare/limit", "latest", conf={"Labels": labels})
        client.remove_container(made)
    finally:
        client.close()
    container, command = await host.start_launch("true", image="gpushare/limit", gpu_memory=None)
    command = await host.answer(command)
    assert command.outcome == Command.Outcome.REFUSED
    assert "com.nvidia.memory.limit" in command.message or "more than" in command.message
    assert len(command.message) < 500
    assert command.message.isprintable()
    assert str(container.pk) not in host.up.broker.live_containers
