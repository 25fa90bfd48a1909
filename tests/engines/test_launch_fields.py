"""Every field of a launch, for each engine and a Swarm: what is asked for is done or refused, never left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from scheduler.containers.launch import ASKED
from scheduler.engines import placer
from scheduler.engines.asked import untaken
from scheduler.engines.base import EngineError, Launch
from scheduler.engines.docker.gpu_access import Additions
from scheduler.engines.docker.images import Image
from scheduler.engines.docker.options import DefaultLimits, Given, create_body
from scheduler.engines.placer import Order
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.process.taken import TAKES
from scheduler.engines.runtime_environment import RuntimeEnvironment
from scheduler.engines.swarm import service
from tests.support.launches import GIVEN
from web.spec.requests import FIELDS

# The scheduler itself sees to these; no engine hears of them but by a container's name and GPUs.
SCHEDULERS = {
    "gpu_memory", "gpus", "name", "priority", "on_shortage", "ttl_seconds", "max_wait_seconds", "compute_weight",
    "compute_limit", "notify", "guaranteed", "give_way", "movable", "remove_when_done",
    "restart",
}  # fmt: skip
WEB = {"node", "constraints"}  # where it goes is settled before a scheduler hears of it, or by a placer
OPENED = {"app"}  # by whoever opens it
ENGINES = {**{field: field for field in ASKED}, "env": "environment"}  # what an engine calls it
LIMITS = DefaultLimits(memory=1 << 36, cpus=16, pids=100, swap=True)


def test_somebody_sees_to_every_field() -> None:
    assert SCHEDULERS | WEB | OPENED | ENGINES.keys() == FIELDS.keys()


@pytest.mark.parametrize("field", sorted(ENGINES.keys() - {"image"}))
def test_docker_is_asked_for_it(a_launch: Callable[..., Launch], tmp_path: Path, field: str) -> None:
    def body(**fields: Any) -> dict[str, Any]:
        given = Given(home=tmp_path, shim=tmp_path, preload=tmp_path, log_bytes=1 << 20)
        made = a_launch(**{"id": "1", "socket_dir": tmp_path, "log_path": tmp_path, **fields})
        return create_body(made, given=given, limits=LIMITS, additions=Additions(), image=Image(), places={})

    assert body() == body()
    assert body(**{ENGINES[field]: GIVEN[field]}) != body()


@pytest.mark.parametrize("field", sorted(ENGINES.keys() - {"image"}))
async def test_process_engine_does_it_or_refuses_it(
    a_launch: Callable[..., Launch], tmp_path: Path, empty_shim: Path, field: str
) -> None:
    engine = ProcessEngine(tmp_path / "processes", RuntimeEnvironment(empty_shim))
    await engine.start()
    same = {"image": "local", "socket_dir": tmp_path, "log_path": tmp_path / "log", "command": ["true"]}

    async def kept(**fields: Any) -> str:
        launch = a_launch(**{**same, **fields})
        await engine.launch(launch)
        return (tmp_path / "processes" / launch.id / "launch.json").read_text()

    asked = {ENGINES[field]: ["echo"] if field == "command" else GIVEN[field]}
    try:
        if ENGINES[field] in TAKES:
            assert await kept(**asked) != await kept()
        else:
            with pytest.raises(
                EngineError, match=f"{field} need{'' if field[-1] == 's' else 's'} the Docker"
            ) as refused:
                await kept(**asked)
            assert (refused.value.code, refused.value.field, refused.value.status) == ("not_supported", field, 400)
    finally:
        await engine.close()


@pytest.mark.parametrize("field", sorted(ENGINES.keys() - {"image"}))
def test_a_swarm_is_asked_for_it_or_refuses_it(field: str) -> None:
    def order(**fields: Any) -> Order:
        same = {"id": str(UUID(int=1)), "name": "a", "owner": "ada", "image": "x", "command": ()}
        return Order(**{**same, "quota": 1 << 30, "cards": (0,), "key": "k", **fields})

    asked = order(**{ENGINES[field]: GIVEN[field]})
    if ENGINES[field] in placer.TAKES:
        assert service.body(asked, None, 1 << 20, LIMITS) != service.body(order(), None, 1 << 20, LIMITS)
    else:
        assert untaken(asked, placer.TAKES) == field
