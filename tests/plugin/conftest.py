"""A host whose scheduler serves Docker's volume plugin, and a real Docker engine that asks it.

The simulated card stands for what NVIDIA's runtime brings on a real host: `card` are the words for it.
"""

import asyncio
import gc
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from django.contrib.auth.models import User

from tests.support.dockerd import GAVE_UP, Dockerd, build_workload, docker_api, have_dockerd, private
from tests.support.dockerd import clear as clear_containers
from tests.support.eventually import eventually
from tests.support.host import BUILD, Host, a_host, query
from web.models import Container

__all__ = ["docker_api"]

IMAGE = "gpushare/mounting:latest"
TARGET = "/run/gpushare"
SHIM = f"LD_PRELOAD={TARGET}/libgpushare.so"


class Lab(Host):
    """A host with a `dockerd` of its own tests. `driver` is what the plugin is called there."""

    dockerd: Dockerd
    socket: Path

    @property
    def driver(self) -> str:
        return self.socket.stem

    @property
    def card(self) -> list[str]:
        state = self.up.gpus.simulation
        assert state is not None
        return [
            "-v", f"{BUILD}/sim:/run/gpushare-lib/sim:ro", "-v", f"{state.parent}:/run/gpushare-card",
            "-e", "LD_LIBRARY_PATH=/run/gpushare-lib/sim", "-e", f"GPUSHARE_SIM=/run/gpushare-card/{state.name}",
        ]  # fmt: skip

    def volume(self, name: str = "", *, read_only: bool = False, target: str = TARGET, **options: str) -> list[str]:
        """The two flags that people write."""
        words = ["type=volume", f"dst={target}", f"volume-driver={self.driver}"]
        words += [f"src={name}"] * bool(name) + ["readonly"] * read_only
        words += [f'"volume-opt={key}={value}"' for key, value in options.items()]
        return ["--mount", ",".join(words), "-e", SHIM]

    async def docker(self, *words: str, code: int | None = 0) -> str:
        """Runs Docker's client to its end; what it printed, errors too."""
        process = await self.docker_begin(*words)
        out = (await process.communicate())[0].decode()
        if GAVE_UP in out.lower():
            return await self.docker(*words, code=code)
        assert code in (None, process.returncode), out
        return out

    async def docker_begin(self, *words: str) -> Process:
        env = {**os.environ, "DOCKER_HOST": self.dockerd.address}
        return await asyncio.create_subprocess_exec(
            "docker", *words, env=env, stdout=PIPE, stderr=asyncio.subprocess.STDOUT
        )

    async def run(self, *words: str, code: int | None = 0, image: str = IMAGE, **options: str) -> str:
        """`docker run` of these words with a volume of these options."""
        return await self.docker("run", "--network=none", *self.card, *self.volume(**options), image, *words, code=code)

    async def begin(
        self, name: str, *words: str, volume: str = "", more: tuple[str, ...] = (), **options: str
    ) -> Container:
        """The same in the background; the record of the container that runs."""
        flags = ["-d", "--name", name, "--network=none", *more, *self.card, *self.volume(volume, **options)]
        await self.docker("run", *flags, IMAGE, *words)
        return await self.running(name)

    async def running(self, name: str) -> Container:
        started = Container.objects.live().filter(name=name).exclude(started_at=None)
        return await eventually(lambda: query(started.all().first))

    async def call(self, call: str, **said: Any) -> dict[str, Any]:
        """What the plugin answers to a call, as Docker makes it."""
        body = json.dumps(said).encode()
        reader, writer = await asyncio.open_unix_connection(str(self.socket))
        head = f"POST /{call} HTTP/1.1\r\nHost: plugin\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        answered: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return answered

    def dockerd_has(self, name: str) -> bool:
        """Whether Docker has a container of this name, ended or not."""
        client = docker.APIClient(self.dockerd.address, version="auto")
        try:
            return bool(client.containers(all=True, filters={"name": name}))
        finally:
            client.close()

    async def nothing_is_held(self) -> None:
        """Nobody lives, nothing is promised, and no folder is left."""
        await eventually(lambda: not self.up.broker.live_containers)
        for folder in ("sockets", "mounted"):
            await eventually(lambda folder=folder: not list((self.home / folder).iterdir()))
        await self.up.store.durable()
        assert await self.living() == []


def clear(dockerd: Dockerd) -> None:
    client = docker.APIClient(dockerd.address, version="auto")
    clear_containers(client)
    for volume in client.volumes()["Volumes"] or []:
        client.remove_volume(volume["Name"], force=True)
    client.close()


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    if why_not := have_dockerd():
        pytest.skip(why_not)
    with private(plugins=True) as engine:
        yield engine
        clear(engine)


@pytest.fixture
async def lab(
    dockerd: Dockerd, transactional_db: None, settings: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Lab]:
    build_workload(dockerd.address, IMAGE)
    settings.GPUSHARE_PLUGIN_PEOPLE = ["ada", "bob"]
    settings.GPUSHARE_PLUGIN_SOCKET = f"{dockerd.plugins}/gpushare.sock"
    for name in ("ada", "bob", "eve"):
        await query(User.objects.create_user, name)
    socket = Path(settings.GPUSHARE_PLUGIN_SOCKET)
    try:
        async with a_host(settings, tmp_path_factory.mktemp("lab"), docker=dockerd.address, kind=Lab) as host:
            host.dockerd, host.socket = dockerd, socket
            await eventually(socket.exists)
            yield host
            if host.scheduler is None:
                await host.start()
            await asyncio.to_thread(clear, dockerd)  # Docker asks the plugin meanwhile
    finally:
        await asyncio.to_thread(socket.unlink, missing_ok=True)


@pytest.fixture
def docker_is_back(dockerd: Dockerd, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    dockerd.restore()
    for phase in ("setup", "call", "teardown"):  # the SDK's errors in them hold its sockets, also in the next test
        caplog.get_records(phase).clear()
    gc.collect()
