"""Fetching images that are not there: with progress, with credentials, once; and what is said when it fails."""

import asyncio
import base64
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from scheduler.engines.base import Condition, EngineError, Launch
from scheduler.engines.docker.client import WORKERS
from scheduler.engines.docker.engine import DockerEngine
from tests.engines.conftest import Opener, leaks_sockets
from tests.support.registry import Registry, serving

pytestmark = pytest.mark.docker


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serving("ada", "lovelace") as registry:
        yield registry


@pytest.fixture
def credentials(tmp_path: Path, registry: Registry) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"auths": {registry.host: {"auth": base64.b64encode(b"ada:lovelace").decode()}}}))
    return path


async def test_missing_image_is_fetched_with_credentials_and_progress(
    open_engine: Opener, docker_api: docker.APIClient, registry: Registry, credentials: Path
) -> None:
    said: list[str] = []
    image = f"{registry.host}/private:1.0"
    async with open_engine(registries=credentials) as engine:
        labels = await engine.image_labels(image, said.append)
    assert labels["com.nvidia.memory.limit"] == "3GiB"
    assert any(re.search(r"[0-9.]+ of [0-9.]+ (MiB|layers)$", words) for words in said), said
    assert all(words.startswith(f"Fetching {image}: ") for words in said)
    docker_api.remove_image(image)


async def test_two_launches_of_a_missing_image_fetch_it_once(
    open_engine: Opener, docker_api: docker.APIClient, registry: Registry, credentials: Path
) -> None:
    image = f"{registry.host}/private"  # without a tag: the latest, not all of them
    async with open_engine(registries=credentials) as engine:
        one, two = await asyncio.gather(engine.image_labels(image), engine.image_labels(image))
    assert one == two
    assert registry.manifests_sent == 1
    docker_api.remove_image(image)


async def test_registry_that_wants_a_password_says_what_to_do(open_engine: Opener, registry: Registry) -> None:
    async with open_engine() as engine:
        with pytest.raises(EngineError, match="GPUSHARE_REGISTRY_CONFIG") as caught:
            await engine.image_labels(f"{registry.host}/private:1.0")
    assert (caught.value.code, caught.value.field) == ("registry_refused", "image")


async def test_tag_that_the_registry_does_not_have(open_engine: Opener, registry: Registry, credentials: Path) -> None:
    async with open_engine(registries=credentials) as engine:
        with pytest.raises(EngineError, match="There is no image") as caught:
            await engine.image_labels(f"{registry.host}/private:9.9")
    assert (caught.value.code, caught.value.status, caught.value.field) == ("unknown_image", 404, "image")


@pytest.mark.parametrize(
    ("image", "code"), [("127.0.0.1:1/nobody/there:1", "registry_away"), ("Not An Image", "invalid_image")]
)
async def test_image_that_cannot_be_had_starts_nothing(
    docker_engine: DockerEngine, a_launch: Callable[..., Launch], image: str, code: str
) -> None:
    with pytest.raises(EngineError) as caught:
        await docker_engine.launch(a_launch("true", image=image))
    assert (caught.value.code, caught.value.field) == (code, "image")
    assert image in str(caught.value)
    assert await docker_engine.statuses() == []


@leaks_sockets
async def test_registries_that_say_nothing_hold_up_nobody_else(
    open_engine: Opener, a_launch: Callable[..., Launch]
) -> None:
    """More images that come slowly, of whatever registry somebody names, than there are threads for all else."""
    async with open_engine() as engine:
        first = (await engine.launch(a_launch("sleep", "600"))).engine_id
        with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
            host = f"127.0.0.1:{silent.getsockname()[1]}"
            fetching = [asyncio.create_task(engine.image_labels(f"{host}/slow:{each}")) for each in range(2 * WORKERS)]
            assert not (await asyncio.wait(fetching, timeout=1))[0]
            async with asyncio.timeout(14):  # a registry that says nothing is given up after 15
                await engine.pause(first)
                assert (await engine.statuses())[0].condition is Condition.PAUSED
                second = (await engine.launch(a_launch("sleep", "600"))).engine_id
                for each in (first, second):
                    await engine.kill(each)
                    await engine.remove(each)
            for task in fetching:
                task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)
