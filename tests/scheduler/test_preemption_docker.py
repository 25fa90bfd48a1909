"""Giving way in Docker containers, on a real engine: out for who waits, and back by itself."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.support.dockerd import Dockerd, build_workload, docker_api, dockerd
from tests.support.eventually import eventually
from tests.support.host import GIB, Host, a_host
from tests.support.swapped import at_once, is_back
from web.models import Container

__all__ = ["docker_api", "dockerd"]
pytestmark = pytest.mark.docker
IMAGE = "gpushare/holder:latest"
LIMIT = 1 * GIB  # of host memory: less than it has on its card


@pytest.fixture
async def lab(
    dockerd: Dockerd,
    transactional_db: None,
    settings: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Host]:
    settings.GPUSHARE_IDLE_MINUTES = 0.02
    monkeypatch.setattr(
        "scheduler.gpus.Reading.computed", lambda *_: 0.0
    )  # the simulated card does not tell who computes
    build_workload(dockerd.address, IMAGE)
    async with a_host(settings, tmp_path_factory.mktemp("host"), docker=dockerd.address) as host:
        host.image, host.workload = IMAGE, Path("/bin/workload")
        yield host


def touch(docker_api: docker.APIClient, container: Container, path: str) -> None:
    made = docker_api.exec_create(container.engine_id, ["sh", "-c", f": > {path}"])
    docker_api.exec_start(made["Id"])


async def test_an_idle_container_gives_way_and_comes_back_by_itself(lab: Host, docker_api: docker.APIClient) -> None:
    at_once()
    words = ("workload", "--bytes", "3GiB", "--check", "1MiB", "--hold")
    script = f"{' '.join(words[:-1])} --until /tmp/go; while [ ! -e /tmp/end ]; do sleep 0.1; done"
    first = await lab.launch("sh", "-c", script, gpu_memory=4 * GIB, memory=LIMIT, name="notebook")
    await lab.says(first, "holding")

    def limit() -> int:
        size: int = docker_api.inspect_container(first.engine_id)["HostConfig"]["Memory"]
        return size

    limited = limit()
    second, _ = await lab.start_launch(*words, "600", gpu_memory=4 * GIB, name="training")
    out = await lab.until(first, "swapped")
    assert (out.gave_way, out.gave_way_to, out.paused_at) == ("idle", "training", None)
    if limited:  # this host has a control group for host memory
        assert limit() >= limited + 3 * GIB
    await lab.says(second, "holding")
    live = lab.up.broker.live_containers[str(first.pk)]
    touch(docker_api, first, "/tmp/go")
    await eventually(lambda: live.suspended_since)  # it frees what it has
    await lab.command("kill", second)
    await is_back(lab, first)  # before its end: else nothing says so
    touch(docker_api, first, "/tmp/end")
    await lab.until(first, "exited")
    events = await lab.events(first, "swapped_out", "swapped_in")
    assert [event.kind for event in events] == ["swapped_out", "swapped_in"]
