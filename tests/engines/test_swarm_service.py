"""What a Swarm is asked for is what Docker is asked for on one host, as far as a Swarm can give it."""

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from scheduler.engines.base import EngineError
from scheduler.engines.docker.options import DefaultLimits
from scheduler.engines.placer import Host, Order
from scheduler.engines.swarm.manager import hosts_of, limits_for
from scheduler.engines.swarm.service import body

GIB = 1 << 30
KEPT = DefaultLimits(memory=8 * GIB, cpus=4.0, pids=500, swap=True)
HERE = Host("manager", {}, {}, memory=4 * GIB, cpus=2.0)
UNSET = DefaultLimits(memory=None, cpus=None, pids=4096, swap=True)


def order(**asked: Any) -> Order:
    return Order(id=str(uuid4()), name="a", owner="ada", image="x", command=(), quota=GIB, cards=(0,), key="k", **asked)


def task(kept: DefaultLimits = KEPT, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = body(order(**asked), None, 1 << 20, kept)["TaskTemplate"]
    return found


def node(name: str, memory: int, cpus: int, *, card: int = 8192, away: bool = False, **labels: str) -> dict[str, Any]:
    """As Docker shows one. `card`: MiB of its GPU 0; none: it has no GPU."""
    declared = [{"DiscreteResourceSpec": {"Kind": "gpu0_mib", "Value": card}}] if card else None
    resources = {"NanoCPUs": cpus * 10**9, "MemoryBytes": memory, "GenericResources": declared}
    return {
        "ID": name,
        "Description": {"Hostname": name, "Resources": resources},
        "Spec": {"Labels": labels, "Availability": "active"},
        "Status": {"State": "down" if away else "ready"},
    }


def shared_memory(found: dict[str, Any]) -> list[int]:
    mounts = found["ContainerSpec"]["Mounts"]
    return [each["TmpfsOptions"]["SizeBytes"] for each in mounts if each["Target"] == "/dev/shm"]


@pytest.mark.parametrize(("asked", "given"), [(None, GIB), (2 * GIB, 2 * GIB)])
def test_shared_memory_is_as_on_one_host(asked: int | None, given: int) -> None:
    """Docker's own 64 MiB end data loaders, and docs/rest.md promises 1 GiB."""
    assert shared_memory(task(shm_size=asked)) == [given]


def test_more_shared_memory_than_memory_is_refused() -> None:
    with pytest.raises(EngineError) as caught:
        task(memory=GIB, shm_size=2 * GIB)
    assert (caught.value.code, caught.value.field) == ("shm_too_large", "shm_size")


def test_who_asks_for_nothing_has_the_limits_that_the_settings_say() -> None:
    assert task()["Resources"]["Limits"] == {"MemoryBytes": 8 * GIB, "NanoCPUs": 4_000_000_000, "Pids": 500}
    asked = task(memory=GIB, cpus=0.5)["Resources"]["Limits"]
    assert asked == {"MemoryBytes": GIB, "NanoCPUs": 500_000_000, "Pids": 500}


def test_where_no_setting_says_more_the_smallest_host_that_it_may_come_to_does() -> None:
    """As for Docker's containers: nine tenths of its memory, all of its processors."""
    hosts = hosts_of(
        [
            node("large", 200 * GIB, 64, disk="ssd"),
            node("small", 100 * GIB, 8),
            node("no-gpu", 2 * GIB, 1, card=0),
            node("little-gpu", 3 * GIB, 1, card=512),
            node("gone", GIB, 1, away=True),
        ],
        {},
    )

    def found(limits: DefaultLimits = UNSET, **asked: Any) -> dict[str, int]:
        asks = order(**asked)
        return body(asks, None, 1 << 20, limits_for(asks, hosts, HERE, limits))["TaskTemplate"]["Resources"]["Limits"]

    assert found() == {"MemoryBytes": 90 * GIB, "NanoCPUs": 8 * 10**9, "Pids": 4096}
    assert found(constraints=("node.labels.disk==ssd",))["MemoryBytes"] == 180 * GIB
    assert found(host="large", memory=150 * GIB)["MemoryBytes"] == 150 * GIB
    assert found(replace(UNSET, host_memory=10 * GIB))["MemoryBytes"] == 10 * GIB
    assert limits_for(order(), [], HERE, UNSET).cpus == HERE.cpus, "no host is known just now"
    for asked in (100 << 40, 150 * GIB):
        with pytest.raises(EngineError, match="is more than a container may take: the most is 90 GiB") as caught:
            found(memory=asked)
        assert (caught.value.code, caught.value.status, caught.value.field) == ("memory_too_large", 400, "memory")
