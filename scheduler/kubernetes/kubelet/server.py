"""Our two sockets for the kubelet: one by which it finds us, in its registry, and the one that it then calls.

The kubelet watches its registry: a socket that comes there is asked who it is, and told whether it is registered. A
kubelet that was restarted looks at all that is there. So a socket that somebody has taken away is made again, and one
that a driver has left that was killed is replaced; what the kubelet does about it is its own business.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from scheduler.kubernetes.kubelet.contracts import DRA, REGISTRATION, handler, message
from scheduler.kubernetes.names import DRIVER

log = logging.getLogger(__name__)

LONGEST_PATH = 107  # bytes of a UNIX socket's path (unix(7))
LOOKS_EVERY = 1.0  # seconds
ANSWERS_WITHIN = 40.0  # seconds; the kubelet gives up after 45, and says less
MOST = 4 << 20  # bytes of one call, as gRPC's own limit: some ten thousand claims


class CannotServe(Exception):
    """The kubelet cannot reach us; the message says what to do."""


class Asked(NamedTuple):
    """A claim as the kubelet names it."""

    namespace: str
    name: str
    uid: str


class Device(NamedTuple):
    """What a claim has of one device, for the kubelet."""

    requests: Sequence[str]
    pool: str
    name: str
    cdi: Sequence[str]


Prepare = Callable[[Asked], Awaitable[Sequence[Device]]]
Unprepare = Callable[[Asked], Awaitable[None]]
Fault = Callable[[Asked, Exception], str]


class KubeletServer:
    """`prepare` and `unprepare` are asked for each claim apart; what they raise `fault` puts into words.

    `folder` is the kubelet's, with `plugins` and `plugins_registry` below it.
    """

    def __init__(self, folder: Path, prepare: Prepare, unprepare: Unprepare, fault: Fault) -> None:
        self._prepare, self._unprepare, self._fault = prepare, unprepare, fault
        self._home = folder / "plugins" / DRIVER
        self.endpoint = self._home / "dra.sock"
        self.registry = folder / "plugins_registry" / f"{DRIVER}.sock"
        self._numbers = itertools.count()
        self._servers: dict[Path, _Bound] = {}
        self.registered = "The kubelet has not asked for us yet."

    async def run(self) -> None:
        """Until cancelled; then the sockets are gone. Raises CannotServe."""
        for path in (self.endpoint, self.registry):
            _require_short(path.with_name(self._name_of_new(path, 10**6)))
        with self._alone():
            try:
                while True:
                    # The kubelet asks at once when we show in its registry: by then the other one has to be there.
                    await self._see_to(self.endpoint, [handler(name, self._calls(name)) for name in DRA.values()])
                    await self._see_to(self.registry, [handler(REGISTRATION, self._registration())])
                    await asyncio.sleep(LOOKS_EVERY)
            finally:
                for path in (self.registry, self.endpoint):
                    if bound := self._servers.pop(path, None):
                        bound.take_away()
                        await bound.server.stop(None)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            self._home.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = os.open(self._home / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CannotServe(
                f"The kubelet's folder cannot be written ({error}): mount /var/lib/kubelet into this pod."
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotServe(
                f"Another driver of ours serves this node's kubelet ({self._home}): a node can have one. "
                "Is the DaemonSet there twice, or is its last pod still ending?"
            ) from None
        else:
            yield
        finally:
            os.close(lock)

    # ---- sockets ----

    async def _see_to(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """That we are heard there. Replaces what a killed driver has left, and what somebody took away."""
        bound = self._servers.get(path)
        if bound is not None and bound.is_there():
            return
        if bound is not None:
            log.warning("the socket %s was taken away; it is made again", path)
        new = path.with_name(self._name_of_new(path, next(self._numbers)))
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST)])
        server.add_generic_rpc_handlers(tuple(handlers))
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            server.add_insecure_port(f"unix://{new}")
            await server.start()
            new.chmod(0o600)
            new.rename(path)  # so that there never is one that nobody listens at
            self._servers[path] = _Bound(path, os.stat(path).st_ino, server)
        except (OSError, RuntimeError) as error:
            await server.stop(None)
            log.error("the kubelet does not find us, again in %.0f s: %s: %s", LOOKS_EVERY, path, error)
            return
        if bound is not None:
            await bound.server.stop(None)

    @staticmethod
    def _name_of_new(path: Path, number: int) -> str:
        return f".{path.stem[:4]}{number}"  # the kubelet passes over names that begin with a dot

    # ---- what the kubelet asks ----

    def _registration(self) -> Mapping[str, Any]:
        info = message("pluginregistration.PluginInfo")
        heard = message("pluginregistration.RegistrationStatusResponse")

        async def get_info(request: Any, context: Any) -> Any:
            return info(type="DRAPlugin", name=DRIVER, endpoint=str(self.endpoint), supported_versions=list(DRA))

        async def notify(status: Any, context: Any) -> Any:
            self.registered = "" if status.plugin_registered else f"The kubelet refuses us: {status.error}"
            if self.registered:
                log.error("%s", self.registered)
            else:
                log.info("the kubelet has registered us")
            return heard()

        return {"GetInfo": get_info, "NotifyRegistrationStatus": notify}

    def _calls(self, service: str) -> Mapping[str, Any]:
        package = service.rpartition(".")[0]
        prepared = message(f"{package}.NodePrepareResourcesResponse")
        unprepared = message(f"{package}.NodeUnprepareResourcesResponse")

        async def prepare(request: Any, context: Any) -> Any:
            answer = prepared()
            for asked, told in await self._each(request, self._prepare):
                entry = answer.claims[asked.uid]
                if isinstance(told, Exception):
                    entry.error = self._fault(asked, told)
                    continue
                for device in told:
                    entry.devices.add(
                        request_names=device.requests, pool_name=device.pool, device_name=device.name,
                        cdi_device_ids=device.cdi,
                    )  # fmt: skip
            return answer

        async def unprepare(request: Any, context: Any) -> Any:
            answer = unprepared()
            for asked, told in await self._each(request, self._unprepare):
                answer.claims[asked.uid].error = self._fault(asked, told) if isinstance(told, Exception) else ""
            return answer

        return {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}

    async def _each(self, request: Any, act: Callable[[Asked], Awaitable[Any]]) -> list[tuple[Asked, Any]]:
        """What became of each claim, side by side: one that takes long or fails is no other's business."""
        asked = list({each.uid: Asked(each.namespace, each.name, each.uid) for each in request.claims}.values())
        return list(zip(asked, await asyncio.gather(*(_within(act(each)) for each in asked)), strict=True))


class _Bound(NamedTuple):
    path: Path
    inode: int
    server: Any

    def is_there(self) -> bool:
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def take_away(self) -> None:
        if self.is_there():
            self.path.unlink(missing_ok=True)


async def _within(act: Awaitable[Any]) -> Any:
    """Its result, or what it raised: never more than the kubelet waits."""
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await act
    except Exception as error:
        return error


def _require_short(path: Path) -> None:
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise CannotServe(
            f"The path of a socket may have {LONGEST_PATH} bytes, and {path} has {len(os.fsencode(path))}: "
            "set GPUSHARE_KUBELET to where the kubelet's folder is mounted, by a shorter path."
        )
