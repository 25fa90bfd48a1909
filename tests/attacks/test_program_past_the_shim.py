"""A program that takes most of a card past the shim: reported, and ended if so configured, whatever way it took.

Within what time: two seconds and three (`python -m benchmarks.bypass`). The bounds here are wider, for a busy machine;
that the looks come close upon each other once something is seen is a test of its own.
"""

from pathlib import Path

import pytest
from pytest_django import Settings

from scheduler.monitors import measure
from tests.support.eventually import eventually
from tests.support.host import GIB, MIB, Host
from tests.support.past import held_at, ways
from web.models import AllocationEvent, Container

TAKEN = 4 * GIB  # 80 % of the card
REPORTED_WITHIN, ENDED_WITHIN = 10.0, 15.0  # seconds
BY_ENVIRONMENT = ("no preload", "no environment")  # no ways past /etc/ld.so.preload, so none in Docker
DOCKER = pytest.mark.docker
CASES = [
    *(pytest.param("process", way, id=f"process-{way}") for way in ways(Path())),
    *(
        pytest.param("docker", way, id=f"docker-{way}", marks=DOCKER)
        for way in ways(Path())
        if way not in BY_ENVIRONMENT
    ),
]


async def bypass_event(host: Host, container: Container) -> AllocationEvent:
    """The event that tells of it."""
    return (await eventually(lambda: host.events(container, "bypass")))[0]


async def holds_since(host: Host, container: Container) -> float:
    return await eventually(lambda: held_at(host.log(container)))


@pytest.mark.parametrize(("host", "way"), CASES, indirect=["host"])
async def test_it_is_reported_and_ended_and_a_bystander_goes_on(host: Host, settings: Settings, way: str) -> None:
    settings.GPUSHARE_BYPASS_ACTION = "kill"
    bystander = await host.launch("workload", "--bytes", "256MiB", "--hold", "600", gpu_memory=512 * MIB)
    await host.says(bystander, "holding")
    container = await host.launch(*ways(host.programs)[way](TAKEN), gpu_memory=GIB)
    held = await holds_since(host, container)
    event = await bypass_event(host, container)
    assert TAKEN <= event.bytes < TAKEN + GIB
    assert event.at.timestamp() - held < REPORTED_WITHIN
    ended = await host.until(container, "killed")
    assert ended.finished_at is not None
    assert ended.finished_at.timestamp() - held < ENDED_WITHIN
    assert "without the shim" in ended.reason
    # It got its memory back, and nobody else was touched or reported.
    gpu = next(iter(host.up.gpus.cards))
    await eventually(lambda: host.up.broker.state.gpus[gpu].capacity == 5 * GIB)
    assert (await host.get(bystander)).state == "running"
    assert await host.events(bystander, "bypass") == []


@pytest.mark.parametrize("host", [pytest.param("docker", marks=DOCKER)], indirect=True)
@pytest.mark.parametrize("way", BY_ENVIRONMENT)
async def test_in_docker_the_environment_is_no_way_past(host: Host, way: str) -> None:
    container = await host.launch(*ways(host.programs)[way](TAKEN), gpu_memory=GIB)
    await host.until(container, "failed")
    assert "got less" in host.log(container)
    assert await host.events(container, "bypass") == []


@pytest.mark.parametrize("host", ["process"], indirect=True)
async def test_once_it_is_seen_the_next_looks_come_soon(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 4.0
    monkeypatch.setattr(measure, "PERIOD", seconds)
    container = await host.launch(*ways(host.programs)["no preload"](TAKEN), gpu_memory=GIB)
    held = await holds_since(host, container)
    event = await bypass_event(host, container)
    assert event.at.timestamp() - held < 2 * seconds  # by usual looks alone it would be reported at the third


@pytest.mark.parametrize("host", ["process"], indirect=True)
async def test_what_a_session_holds_beside_its_charge_is_only_charged_as_long_as_its_quota_has_room(host: Host) -> None:
    """So it is with libraries and modules: nobody can tell them from what was taken past the shim."""
    container = await host.launch(*ways(host.programs)["dlmopen beside a session"](2 * GIB), gpu_memory=4 * GIB)
    await holds_since(host, container)
    gpu = next(iter(host.up.gpus.cards))
    live = host.up.broker.live_containers[str(container.pk)]
    await eventually(lambda: live.used(gpu) > 2 * GIB)
    assert await host.events(container, "bypass") == []
