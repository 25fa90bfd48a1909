"""The Docker SDK, called from threads. Every error leaves here as an EngineError."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import docker
import docker.errors
import requests.exceptions
from docker.types import CancellableStream

from scheduler import threads
from scheduler.engines.docker.errors import explain

T = TypeVar("T")

ANSWERS_WITHIN = 60  # seconds; creating a container on a loaded disk takes a while
HEAD_START = 0.1  # seconds; whoever launched is answered before we look at what started and ask for its output
LOOK_WITHIN = 10  # seconds; a list or an inspection that takes longer means that Docker hangs
WORKERS = 16
FETCHERS = 16  # threads for images: a registry is as slow as it likes, and anybody may name theirs
INSIDE = 16  # threads for programs beside a container's own, and keyboards: where no processor is left, each takes long
PATIENT = 4  # threads for what waits for somebody's program: whoever lets it wait holds up none of the others


class DirectClient(docker.APIClient):
    """Never through a proxy that the environment names: the engine is on this host, over TCP too.

    `requests` has no other way for a client that asks for the engine's version while it is made.
    """

    @property
    def trust_env(self) -> bool:
        return False

    @trust_env.setter
    def trust_env(self, value: bool) -> None:
        pass


class Client:
    """`api` is for acting, `look` the same with less patience, for looking."""

    api: docker.APIClient
    look: docker.APIClient

    def __init__(self, address: str) -> None:
        self.address = address
        self._workers = threads.pool(WORKERS, "docker")
        self._fetchers = threads.pool(FETCHERS, "docker-fetch")
        self._inside = threads.pool(INSIDE, "docker-inside")
        self._patient = threads.pool(PATIENT, "docker-patient")

    async def connect(self) -> dict[str, Any]:
        """Docker's own description of itself. Raises EngineAway."""
        return await self.call(self._connect)

    def _connect(self) -> dict[str, Any]:
        self.api = DirectClient(self.address, version="auto", timeout=ANSWERS_WITHIN, max_pool_size=2 * WORKERS)
        version = self.api.api_version
        self.look = DirectClient(self.address, version=version, timeout=LOOK_WITHIN, max_pool_size=2 * WORKERS)
        info: dict[str, Any] = self.api.info()
        return info

    async def call(self, function: Callable[..., T], *arguments: Any, **words: str) -> T:
        """Calls from a worker thread; `words` (image, command, ports) go into the explanation of an error."""
        return await self._explained(self._workers, partial(function, *arguments), **words)

    async def fetch(self, function: Callable[..., T], *arguments: Any, **words: str) -> T:
        """The same as `call` for what waits for a registry."""
        return await self._explained(self._fetchers, partial(function, *arguments), **words)

    async def call_inside(self, function: Callable[..., T], *arguments: Any) -> T:
        """The same for what a container's owner can make slow as often as they like."""
        return await self._explained(self._inside, partial(function, *arguments))

    async def call_patiently(self, function: Callable[..., T], *arguments: Any) -> T:
        """The same for what may wait for a program of somebody's."""
        return await self._explained(self._patient, partial(function, *arguments))

    async def _explained(self, pool: Executor, function: Callable[[], T], **words: str) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, function)
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            raise explain(error, address=self.address, **words) from error

    async def blocking(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, partial(function, *arguments))

    async def unless_gone(self, function: Callable[..., object], *arguments: Any, inside: bool = False) -> None:
        """The same, where a container that is gone, or already in the state asked for, is success."""
        pool = self._inside if inside else self._workers
        try:
            await asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))
        except docker.errors.APIError as error:
            # Docker has no code of its own for what ended, or was let go on, by its signal before it could be unpaused:
            # runc refuses "a running process" or "a stopped container", by how far that signal has come.
            goes_on = any(words in str(error.explanation) for words in ("is not paused", "cannot resume a"))
            if error.status_code not in (304, 404, 409) and not goes_on:
                raise explain(error, address=self.address) from error
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            raise explain(error, address=self.address) from error

    def close(self) -> None:
        for pool in (self._workers, self._fetchers, self._inside, self._patient):
            pool.shutdown(wait=False, cancel_futures=True)
        for name in ("api", "look"):
            if (client := getattr(self, name, None)) is not None:
                client.close()


def wake(stream: CancellableStream[Any]) -> None:
    """Ends a stream that another thread reads: its next read finds the end."""
    with suppress(OSError, AttributeError):  # it may have ended just now
        stream.close()


def release(stream: CancellableStream[Any]) -> None:
    """Gives a stream's descriptor back, in the thread that read it; the SDK leaves that to the garbage collector."""
    with suppress(OSError):
        stream._response.close()  # type: ignore[attr-defined]
