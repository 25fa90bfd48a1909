"""A container with a door to it by ssh, in this process: of local processes, or of Docker."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from scheduler.containers.consoles import Consoles
from scheduler.engines.base import Engine, Launch
from scheduler.engines.docker.engine import DockerEngine
from scheduler.engines.process.engine import ProcessEngine
from scheduler.engines.process.taken import IMAGE
from scheduler.engines.runtime_environment import RuntimeEnvironment
from tests.engines.conftest import (
    a_launch,
    docker_api,
    docker_engine,
    dockerd,
    empty,
    empty_shim,
    open_engine,
    started,
)
from tests.support.eventually import PATIENCE, eventually
from tests.support.machine import make_container
from tests.support.people import make_user
from web.door.server import open_door
from web.models import SshKey
from web.people import ssh_keys
from web.spec.inside.reserved import SFTP

__all__ = ["a_launch", "docker_api", "docker_engine", "dockerd", "empty_shim", "in_docker", "lab", "open_engine"]

HERE = {"swap": "", "gave_way": "", "paused": False, "is_out": False}  # where its memory is


def make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "laptop", "-f", path], check=True)


class Lab:
    """A container of `owner`, whose key is at `key`, and the door to it at `port`."""

    def __init__(self, engine: Engine, home: Path, a_launch: Callable[..., Launch]) -> None:
        self._engine, self.home, self._a_launch = engine, home, a_launch
        self._live: dict[str, Any] = {}
        self.consoles = Consoles(engine, cast(Any, SimpleNamespace(live_containers=self._live)), home)
        self.key = home / "key"
        self.work = home / "work"

    async def open(self) -> None:
        self.work.mkdir()
        await self.consoles.open()
        await sync_to_async(self._people)()
        self.launch = self._a_launch("/bin/sleep", "600", working_dir=str(self.work))
        shutil.copy(settings.GPUSHARE_BUILD / SFTP, self.launch.socket_dir)
        status = await self._engine.launch(self.launch)
        await self._engine.statuses()
        self._live[self.launch.id] = SimpleNamespace(finished=False, engine_id=status.engine_id, **HERE)
        await sync_to_async(make_container)(self.owner, "train.v1", pk=UUID(self.launch.id))
        await self.open_door("127.0.0.1")

    async def open_door(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        self.address, self.port = address, listener.getsockname()[1]
        self.door = await open_door(listener)
        (self.home / "known").write_text(f"[{address}]:{self.port} {ssh_keys.host_key_line()}\n")

    async def close_door(self) -> None:
        self.door.close()
        await self.door.wait_closed()

    def _people(self) -> None:
        self.owner = make_user("owner")
        self.add_key(self.owner, self.key)

    def add_key(self, user: Any, path: Path) -> SshKey:
        make_key(path)
        return ssh_keys.add(user, {"key": path.with_suffix(".pub").read_text()})

    def options(self, key: Path | None = None) -> list[str]:
        said = {
            "IdentityFile": key or self.key, "IdentitiesOnly": "yes", "UserKnownHostsFile": self.home / "known",
            "StrictHostKeyChecking": "yes", "BatchMode": "yes", "LogLevel": "ERROR", "ConnectTimeout": int(PATIENCE),
        }  # fmt: skip
        return ["-F", "none", *(f"-o{name}={value}" for name, value in said.items())]

    async def start(self, *words: str, name: str = "train.v1", key: Path | None = None) -> asyncio.subprocess.Process:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        to = f"{name}@{self.address}"
        return await asyncio.create_subprocess_exec(
            "ssh", *self.options(key), "-p", str(self.port), to, *words, **cast(Any, pipes)
        )

    async def ssh(self, *words: str, typed: bytes = b"", **how: Any) -> tuple[int, bytes, bytes]:
        client = await self.start(*words, **how)
        async with asyncio.timeout(PATIENCE):
            out, err = await client.communicate(typed)
        return client.returncode or 0, out, err

    async def close(self) -> None:
        await self.close_door()
        await self.consoles.close()


@pytest.fixture
async def lab(tmp_path: Path, settings: Any, empty_shim: Path, a_launch: Callable[..., Launch]) -> AsyncIterator[Lab]:
    settings.GPUSHARE_HOME = tmp_path
    local = ProcessEngine(tmp_path / "processes", RuntimeEnvironment(empty_shim))
    launch = partial(a_launch, image=IMAGE)
    async with started(local) as engine:
        made = Lab(engine, tmp_path, launch)
        await made.open()
        yield made
        await made.close()
        await empty(engine)


@pytest.fixture
async def in_docker(
    docker_engine: DockerEngine, tmp_path: Path, settings: Any, a_launch: Callable[..., Launch]
) -> AsyncIterator[Lab]:
    settings.GPUSHARE_HOME = tmp_path
    made = Lab(docker_engine, tmp_path, a_launch)
    await made.open()
    yield made
    await made.close()


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def over(client: asyncio.subprocess.Process) -> None:
    """Killed: a SIGTERM just before OpenSSH waits for data it heeds at the next data, which may be 30 s later."""
    client.kill()
    await client.wait()


async def answer_of(port: int) -> bytes:
    """To an HTTP request, once something listens and lets it through; nothing where it is refused."""
    reader, writer = await eventually(lambda: connected(port))
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        return await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return None
