"""Our two sockets for the kubelet: one by which it finds us, in its registry, and the one that it then calls.

The kubelet watches its registry: it asks a socket that comes there who it is, and says whether it is registered. A
kubelet that was restarted looks at all that is there. So a socket that somebody has taken away is made again, and one
that a driver has left that was killed is replaced; what the kubelet does about it is its own business.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scheduler.kubernetes.kubelet.contracts import DRA, REGISTRATION, handler, message
from scheduler.kubernetes.kubelet.sockets import LOOKS_EVERY, CannotServe, Sockets
from scheduler.kubernetes.names import DRIVER

log = logging.getLogger(__name__)

ANSWERS_WITHIN = 40.0  # seconds; the kubelet gives up after 45, and says less


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
        self._sockets = Sockets()
        self.registered = "The kubelet has not contacted this driver yet."

    async def run(self) -> None:
        """Within `alone`, until cancelled; then the sockets are gone. Raises CannotServe."""
        for path in (self.endpoint, self.registry):
            self._sockets.require_short(path)
        try:
            while True:
                # The kubelet asks at once when we show in its registry: by then the other one has to be there.
                await self._sockets.see_to(self.endpoint, [handler(name, self._calls(name)) for name in DRA.values()])
                await self._sockets.see_to(self.registry, [handler(REGISTRATION, self._registration())])
                await asyncio.sleep(LOOKS_EVERY)
        finally:
            for path in (self.registry, self.endpoint):
                await self._sockets.take_away(path)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While inside, no other driver of ours serves this kubelet, however that one is installed. CannotServe."""
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
            for asked, outcome in await self._each(request, self._prepare):
                entry = answer.claims[asked.uid]
                if isinstance(outcome, Exception):
                    entry.error = self._fault(asked, outcome)
                    continue
                for device in outcome:
                    entry.devices.add(
                        request_names=device.requests, pool_name=device.pool, device_name=device.name,
                        cdi_device_ids=device.cdi,
                    )  # fmt: skip
            return answer

        async def unprepare(request: Any, context: Any) -> Any:
            answer = unprepared()
            for asked, outcome in await self._each(request, self._unprepare):
                answer.claims[asked.uid].error = self._fault(asked, outcome) if isinstance(outcome, Exception) else ""
            return answer

        return {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}

    async def _each(self, request: Any, act: Callable[[Asked], Awaitable[Any]]) -> list[tuple[Asked, Any]]:
        """What became of each claim, side by side: one that takes long or fails is no other's business."""
        asked = list({each.uid: Asked(each.namespace, each.name, each.uid) for each in request.claims}.values())
        return list(zip(asked, await asyncio.gather(*(_within(act, each) for each in asked)), strict=True))


async def _within(act: Callable[[Asked], Awaitable[Any]], asked: Asked) -> Any:
    """Its result, or what it raised: never more than the kubelet waits.

    The call begins here, and not before: one that is cancelled before it begins would leave a coroutine behind.
    """
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            return await act(asked)
    except Exception as error:
        return error
