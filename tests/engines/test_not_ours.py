"""No act of an engine reaches what this appliance has not started, whatever a row names and an image's labels say."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import docker
import pytest

from scheduler.engines.base import Engine, EngineError, Exec
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.docker.options import LABEL, LABEL_HOME, LABEL_LOG, LABEL_MEMORY, LABEL_OWNER, LABEL_TTY
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import started
from tests.support.dockerd import build_image
from web.spec.inside.reserved import SOCKETS

Act = Callable[[Engine, str], Awaitable[object]]
ID = "0b5e7c52-5a0e-4c0f-9a44-0c4f6f0c2f11"

ACTS: dict[str, Act] = {
    "kill": lambda engine, id_: engine.kill(id_),
    "kill with grace": lambda engine, id_: engine.kill(id_, grace=0.1),
    "remove": lambda engine, id_: engine.remove(id_),
    "pause": lambda engine, id_: engine.pause(id_),
    "resume": lambda engine, id_: engine.resume(id_),
    "exec": lambda engine, id_: engine.exec(id_, Exec(["true"])),
    "attach": lambda engine, id_: engine.attach(id_),
    "more memory": lambda engine, id_: engine.add_memory(id_, 1 << 20),
}


@pytest.fixture
def labels(tmp_path: Path) -> dict[str, str]:
    log = str(tmp_path / "stolen.log")
    return {
        LABEL: ID,
        LABEL_HOME: str(tmp_path),
        LABEL_OWNER: "ada",
        LABEL_LOG: log,
        LABEL_MEMORY: str(64 << 20),
        LABEL_TTY: "no",
    }


@pytest.mark.docker
@pytest.mark.parametrize("state", ["running", "exited", "created"])
@pytest.mark.parametrize("act", ACTS)
async def test_no_act_reaches_a_foreign_container_of_an_image_with_our_labels(
    docker_engine: DockerEngine,
    docker_api: docker.APIClient,
    labels: dict[str, str],
    act: str,
    state: str,
    tmp_path: Path,
) -> None:
    """With a volume of its own at the place of our socket: that is no folder of the host."""
    build_image(docker_api, "gpushare/labelled:latest", labels=labels)
    host = docker_api.create_host_config(binds=[f"kept:{SOCKETS}"], mem_limit=64 << 20, memswap_limit=64 << 20)
    made = docker_api.create_container(
        "gpushare/labelled:latest", ["sh", "-c", "sleep 600" if state == "running" else "exit 0"],
        host_config=host, stdin_open=True,
    )["Id"]  # fmt: skip
    try:
        if state != "created":
            docker_api.start(made)
        if state == "exited":
            docker_api.wait(made)
        before = docker_api.inspect_container(made)
        for named in (made, made[:12], before["Name"].lstrip("/")):
            with pytest.raises(EngineError) as caught:
                await ACTS[act](docker_engine, named)
            assert caught.value.code == "not_ours"
        assert all(each.id != ID for each in await docker_engine.statuses())
        after = docker_api.inspect_container(made)
        assert (after["State"], after["HostConfig"]) == (before["State"], before["HostConfig"])
        assert docker_api.inspect_volume("kept")
        assert not (tmp_path / "stolen.log").exists()
    finally:
        docker_api.remove_container(made, force=True)


@pytest.mark.docker
async def test_a_container_that_is_gone_is_none_of_others(docker_engine: DockerEngine) -> None:
    gone = "f" * 64
    await docker_engine.kill(gone)
    await docker_engine.remove(gone)
    with pytest.raises(EngineError, match="has ended"):
        await docker_engine.pause(gone)


@pytest.fixture
async def process_engine(tmp_path: Path, empty_shim: Path) -> AsyncIterator[ProcessEngine]:
    async with started(ProcessEngine(tmp_path / "processes", RuntimeEnvironment(empty_shim))) as engine:
        yield engine


@pytest.mark.parametrize("act", [act for act in ACTS if act not in ("attach", "more memory")])
@pytest.mark.parametrize("named", ["../precious", "", "..", ".", "/"])
async def test_no_act_of_the_process_engine_leaves_its_folder(
    process_engine: ProcessEngine, tmp_path: Path, act: str, named: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text(json.dumps({}))
    with pytest.raises(EngineError) as caught:
        await ACTS[act](process_engine, named if named != "/" else str(precious))
    assert caught.value.code == "not_ours"
    assert (precious / "file").exists()
    assert (tmp_path / "processes").exists()
