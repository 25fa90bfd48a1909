"""What happens to containers behind our back is seen within two seconds, whoever was away meanwhile."""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import docker
import docker.errors
import pytest

from scheduler.engines.base import Condition, EngineAway, EngineError, Launch, Status
from scheduler.engines.docker import watch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.options import LABEL
from tests.engines.conftest import Opener, changed_to, empty, leaks_sockets, removed
from tests.support.dockerd import Dockerd
from tests.support.eventually import PATIENCE, eventually

pytestmark = [pytest.mark.docker, leaks_sockets]
Launcher = Callable[..., Launch]
WITHIN = 2.0


Meddle = Callable[[docker.APIClient, str], None]
MEDDLING: list[tuple[str, Meddle, Condition]] = [
    ("paused", lambda api, id_: api.pause(id_), Condition.PAUSED),
    ("killed", lambda api, id_: api.kill(id_), Condition.ENDED),
    ("removed", lambda api, id_: api.remove_container(id_, force=True), Condition.GONE),
]
each_meddling = pytest.mark.parametrize(
    ("meddle", "condition"), [pytest.param(m, c, id=name) for name, m, c in MEDDLING]
)


@each_meddling
async def test_change_behind_our_back_is_seen(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, meddle: Meddle, condition: Condition
) -> None:
    launch = a_launch("sleep", "600")
    engine_id = (await docker_engine.launch(launch)).engine_id
    meddle(docker_api, engine_id)
    assert (await changed_to(docker_engine, launch.id, condition)).engine_id == engine_id


@each_meddling
async def test_change_is_seen_without_any_event(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher, meddle: Meddle, condition: Condition
) -> None:
    launch = a_launch("sleep", "600")
    engine_id = (await docker_engine.launch(launch)).engine_id
    follower = docker_engine._watch._events
    assert follower is not None
    await asyncio.to_thread(follower.close)
    meddle(docker_api, engine_id)
    await changed_to(docker_engine, launch.id, condition)


@each_meddling
async def test_change_while_the_scheduler_was_down_is_seen_at_its_start(
    open_engine: Opener, docker_api: docker.APIClient, a_launch: Launcher, meddle: Meddle, condition: Condition
) -> None:
    launch = a_launch("sleep", "600")
    async with open_engine() as engine:
        engine_id = (await engine.launch(launch)).engine_id
    meddle(docker_api, engine_id)
    async with open_engine() as engine:
        found = {status.id: status.condition for status in await engine.statuses()}
        assert found == ({} if condition is Condition.GONE else {launch.id: condition})
        await engine.kill(engine_id)
        await engine.remove(engine_id)


async def test_duplicate_and_late_events_tell_nothing_twice(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    launch = a_launch("sleep", "600")
    engine_id = (await docker_engine.launch(launch)).engine_id
    await docker_engine.kill(engine_id)
    for _ in range(3):  # as if the stream repeated itself, or came late
        docker_engine._watch._hints.put_nowait(engine_id)
        docker_engine._watch._hints.put_nowait("0" * 64)
    docker_api.remove_container(engine_id)
    conditions = []
    async with asyncio.timeout(PATIENCE):
        async for status in docker_engine.changes():
            conditions.append(status.condition)
            if status.condition is Condition.GONE:
                break
    assert conditions.count(Condition.ENDED) == 1
    assert conditions[-2:] == [Condition.ENDED, Condition.GONE]


async def test_containers_of_others_are_not_ours(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    foreign = docker_api.create_container("gpushare/test:latest", ["sleep", "600"], labels={LABEL: "not-of-this-home"})
    docker_api.start(foreign["Id"])
    try:
        assert await docker_engine.statuses() == []
    finally:
        docker_api.remove_container(foreign["Id"], force=True)


def cut_short(engine: DockerEngine, launch: Launch) -> None:
    """The scheduler dies between the two calls: the container is made, and never started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._client.api, "start", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine._maker.make(launch, threading.Lock())


async def test_launch_cut_short_is_tidied_up(
    open_engine: Opener, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    launch = a_launch("sleep", "600")
    async with open_engine() as engine:
        cut_short(engine, launch)
    made = docker_api.containers(all=True, filters={"label": f"{LABEL}={launch.id}"})
    assert [each["State"] for each in made] == ["created"]
    async with open_engine() as engine:
        assert await engine.statuses() == []
    assert docker_api.containers(all=True, filters={"label": f"{LABEL}={launch.id}"}) == []


async def test_what_docker_cannot_remove_hides_nobody_and_is_said_once(
    docker_engine: DockerEngine, a_launch: Launcher, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(*_: object, **__: object) -> None:
        said = "unable to remove filesystem: device or resource busy"
        raise docker.errors.APIError(said, response=Mock(status_code=500), explanation=said)

    cut_short(docker_engine, a_launch("sleep", "600"))
    with monkeypatch.context() as patch:
        patch.setattr(docker_engine._client.api, "remove_container", busy)
        launch = a_launch("sleep", "600")
        await docker_engine.launch(launch)
        for _ in range(3):
            assert [each.id for each in await docker_engine.statuses()] == [launch.id]
    assert [each.levelname for each in caplog.records].count("WARNING") == 1


async def test_list_from_before_its_start_takes_no_container_away(
    docker_engine: DockerEngine, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    launch = a_launch("true")
    engine_id = (await docker_engine.launch(launch)).engine_id
    await changed_to(docker_engine, launch.id, Condition.ENDED)
    await docker_engine._watch._tidy(launch.id, engine_id)  # the list said that it was only created
    assert docker_api.inspect_container(engine_id)["State"]["Status"] == "exited"


# ---- Docker itself goes away and comes back -------------------------------------------------------------------------


@pytest.fixture
def restored(dockerd: Dockerd) -> Iterator[Dockerd]:
    yield dockerd
    dockerd.restore()


# Slowly takes half a minute: dockerd stops its containers one by one.
@pytest.mark.parametrize("suddenly", [pytest.param(False, marks=pytest.mark.long), True])
async def test_dockerd_restarts_and_we_go_on(
    docker_engine: DockerEngine,
    restored: Dockerd,
    a_launch: Launcher,
    suddenly: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch_, looks = docker_engine._watch, 0
    reconcile = watch_.reconcile

    async def counted() -> list[Status]:
        nonlocal looks
        looks += 1
        return await reconcile()

    monkeypatch.setattr(watch_, "reconcile", counted)
    launch = a_launch("/bin/sh", "-c", "trap exit TERM; while :; do sleep 0.1; done")
    engine_id = (await docker_engine.launch(launch)).engine_id
    await asyncio.to_thread(restored.kill if suddenly else restored.stop)
    await eventually(lambda: docker_engine.away)
    assert restored.address in docker_engine.away
    with pytest.raises(EngineAway):
        await docker_engine.pause(engine_id)
    await asyncio.to_thread(restored.start)
    before = looks
    # dockerd ends its containers when it ends; what survives its sudden death, the next one ends.
    await changed_to(docker_engine, launch.id, Condition.ENDED)
    assert looks <= before + 2  # by looks, not by a clock: one may have been under way when Docker was not yet back
    await eventually(lambda: not docker_engine.away)
    again = a_launch("/bin/sh", "-c", "exit 4")
    await docker_engine.launch(again)
    assert (await changed_to(docker_engine, again.id, Condition.ENDED)).exit_code == 4


async def test_dockerd_that_hangs_is_away_and_then_is_not(docker_engine: DockerEngine, restored: Dockerd) -> None:
    docker_engine._client.look.timeout = 0.5
    restored.freeze()
    await eventually(lambda: docker_engine.away)
    assert "too slow" in docker_engine.away
    restored.thaw()
    await eventually(lambda: not docker_engine.away)


def immutable(path: str, flag: str = "+i") -> bool:
    """Whether this file system can do that."""
    return subprocess.run(["chattr", flag, path], capture_output=True).returncode == 0


async def test_one_that_docker_could_not_remove_keeps_no_scheduler_from_starting(
    open_engine: Opener, restored: Dockerd, docker_api: docker.APIClient, a_launch: Launcher
) -> None:
    """A restarted Docker calls it dead, as it is half removed; the next removal fails as the first did."""
    async with open_engine() as engine:
        ended = (await engine.launch(a_launch("true"))).engine_id
        await eventually(lambda: docker_api.inspect_container(ended)["State"]["Status"] == "exited")
        layer = (docker_api.inspect_container(ended)["GraphDriver"]["Data"] or {}).get("UpperDir", "")
        if not layer or not immutable(layer):
            await empty(engine)
            pytest.skip("containerd keeps the layer and removes it later, or this file system removes whatever it is")
        try:
            with pytest.raises(EngineError, match="operation not permitted"):
                await removed(engine, ended)
            await asyncio.to_thread(restored.kill)
            await asyncio.to_thread(restored.start)
            assert docker_api.inspect_container(ended)["State"]["Status"] == "dead"
            async with open_engine() as engine:
                launch = a_launch("sleep", "600")
                await engine.launch(launch)
                assert launch.id in {each.id for each in await engine.statuses()}
        finally:
            immutable(layer, flag="-i")
    async with open_engine() as engine:
        await empty(engine)
    assert ended not in [each["Id"] for each in docker_api.containers(all=True)]


async def test_no_docker_at_the_start_is_said_and_may_be_tried_again(open_engine: Opener) -> None:
    with pytest.raises(EngineAway, match=r"does not answer at unix:///no/docker\.sock"):
        async with open_engine(address="unix:///no/docker.sock"):
            pass


def test_regular_look_is_often_enough() -> None:
    assert watch.LOOK_AGAIN + watch.LAST_WORDS <= WITHIN
