"""What a Swarm is asked for is what Docker is asked for on one host, as far as a Swarm can give it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from scheduler.engines.base import EngineError
from scheduler.engines.placer import Order
from scheduler.engines.swarm.service import body

GIB = 1 << 30
KEPT = {"memory": 8 * GIB, "cpus": 4.0, "pids": 500}


def task(kept: dict[str, Any] = KEPT, **asked: Any) -> dict[str, Any]:
    order = Order(
        id=str(uuid4()), name="a", owner="ada", image="x", command=(), quota=GIB, cards=(0,), key="k", **asked
    )
    found: dict[str, Any] = body(order, None, 1 << 20, kept)["TaskTemplate"]
    return found


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
