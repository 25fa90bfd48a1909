"""The kubelet's older way (device plugin v1beta1): it lists devices that it counts, and asks for some of them.

Here we go to the kubelet: its socket is in a folder of its own, ours beside it. A kubelet that was restarted has taken
away all sockets there and makes its own anew: then we come again. It drops lists of more than 4 MiB without a word, so
such a one is never sent.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from scheduler.kubernetes.kubelet.contracts import handler, message, service
from scheduler.kubernetes.kubelet.sockets import LOOKS_EVERY, MOST, Sockets
from scheduler.kubernetes.names import DRIVER

log = logging.getLogger(__name__)

VERSION = "v1beta1"
PLUGIN, REGISTER, LISTER = "v1beta1.DevicePlugin", "v1beta1.Registration", "v1.PodResourcesLister"
WITHIN = 10.0  # seconds for a call of ours


@dataclass(frozen=True, slots=True)
class Given:
    """What a container gets. `mounts`: path in it, on the host, whether read-only."""

    environment: Mapping[str, str]
    mounts: Sequence[tuple[str, str, bool]]
    devices: Sequence[str] = ()
    cdi: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Holder:
    """A container of a pod, and the units that the kubelet has given it."""

    namespace: str
    pod: str
    container: str
    units: frozenset[str] = field(default_factory=frozenset)


class DevicePlugin:
    """`units`: name → health, now. `allocate` may raise; `fault` puts that into words."""

    def __init__(
        self,
        folder: Path,
        resource: str,
        units: Callable[[], Mapping[str, str]],
        prefer: Callable[[Sequence[str], Sequence[str], int], Sequence[str]],
        allocate: Callable[[Sequence[Sequence[str]]], Awaitable[Sequence[Given]]],
        fault: Callable[[Exception], str],
    ) -> None:
        self._resource, self._units, self._prefer, self._allocate = resource, units, prefer, allocate
        self._fault = fault
        self._kubelet = folder / "device-plugins" / "kubelet.sock"
        self._pods = folder / "pod-resources" / "kubelet.sock"
        self.endpoint = self._kubelet.with_name(f"{DRIVER}.sock")
        self._sockets = Sockets()
        self._known: tuple[int, int] | None = None  # the kubelet's socket and ours, when it last heard of us
        self.registered = "The kubelet does not know the device plugin yet."

    async def run(self) -> None:
        """Until cancelled; then the socket is gone. Raises CannotServe."""
        self._sockets.require_short(self.endpoint)
        try:
            while True:
                await self._sockets.see_to(self.endpoint, [handler(PLUGIN, self._calls())])
                await self._register()
                await asyncio.sleep(LOOKS_EVERY)
        finally:
            await self._sockets.take_away(self.endpoint)

    async def holders(self) -> list[Holder] | None:
        """Who has units, as the kubelet has it; None if it does not say."""
        try:
            answer = await _call(self._pods, LISTER, "List", {})
        except grpc.aio.AioRpcError as error:
            log.debug("the kubelet does not say which pod has what: %s", error.details())
            return None
        return [
            Holder(pod.namespace, pod.name, container.name, units)
            for pod in answer.pod_resources
            for container in pod.containers
            if (units := frozenset(_of(container, self._resource)))
        ]

    async def _register(self) -> None:
        """Each kubelet once, and again when our socket is another."""
        try:
            now = (self._kubelet.stat().st_ino, self.endpoint.stat().st_ino)
        except OSError:
            self._known, self.registered = None, f"There is no kubelet at {self._kubelet}."
            return
        if now == self._known:
            return
        asked = {
            "version": VERSION, "endpoint": self.endpoint.name, "resource_name": self._resource,
            "options": {"get_preferred_allocation_available": True},
        }  # fmt: skip
        try:
            await _call(self._kubelet, REGISTER, "Register", asked)
        except grpc.aio.AioRpcError as error:
            self.registered = f"The kubelet refuses the device plugin: {error.details()}"
            log.error("%s", self.registered)
        else:
            self._known, self.registered = now, ""
            log.info("the kubelet counts %s", self._resource)

    # ---- what the kubelet asks ----

    def _calls(self) -> Mapping[str, Any]:
        options = message("v1beta1.DevicePluginOptions")
        listed = message("v1beta1.ListAndWatchResponse")
        preferred = message("v1beta1.PreferredAllocationResponse")
        allocated = message("v1beta1.AllocateResponse")
        nothing = message("v1beta1.PreStartContainerResponse")

        async def get_options(request: Any, context: Any) -> Any:
            return options(get_preferred_allocation_available=True)

        async def list_and_watch(request: Any, context: Any) -> AsyncIterator[Any]:
            sent: Mapping[str, str] | None = None
            while True:
                if (now := dict(self._units())) != sent:
                    sent = now
                    answer = listed(devices=[{"ID": name, "health": health} for name, health in now.items()])
                    if (size := answer.ByteSize()) > MOST:
                        log.error("%d units take %d bytes, and the kubelet drops more than %d", len(now), size, MOST)
                        answer = listed()
                    yield answer
                await asyncio.sleep(LOOKS_EVERY)

        async def prefer(request: Any, context: Any) -> Any:
            return preferred(
                container_responses=[
                    {
                        "deviceIDs": self._prefer(
                            each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
                        )
                    }
                    for each in request.container_requests
                ]
            )

        async def allocate(request: Any, context: Any) -> Any:
            try:
                given = await self._allocate([list(each.devices_ids) for each in request.container_requests])
            except Exception as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._fault(error))
            return allocated(container_responses=[_response(each) for each in given])

        async def pre_start(request: Any, context: Any) -> Any:
            return nothing()

        return {
            "GetDevicePluginOptions": get_options, "ListAndWatch": list_and_watch, "GetPreferredAllocation": prefer,
            "Allocate": allocate, "PreStartContainer": pre_start,
        }  # fmt: skip


def _response(given: Given) -> Mapping[str, Any]:
    return {
        "envs": dict(given.environment),
        "mounts": [
            {"container_path": there, "host_path": here, "read_only": fixed} for there, here, fixed in given.mounts
        ],
        "devices": [{"container_path": path, "host_path": path, "permissions": "rw"} for path in given.devices],
        "cdi_devices": [{"name": name} for name in given.cdi],
    }


def _of(container: Any, resource: str) -> list[str]:
    return [unit for each in container.devices if each.resource_name == resource for unit in each.device_ids]


async def _call(path: Path, of: str, method: str, fields: Mapping[str, Any]) -> Any:
    """Asks the kubelet at its socket. Raises grpc.aio.AioRpcError."""
    described = service(of).methods_by_name[method]
    asks, answers = message(described.input_type.full_name), message(described.output_type.full_name)
    options = [("grpc.max_receive_message_length", 4 * MOST)]
    async with grpc.aio.insecure_channel(f"unix://{path}", options=options) as channel:
        call = channel.unary_unary(
            f"/{of}/{method}", request_serializer=asks.SerializeToString, response_deserializer=answers.FromString
        )
        return await call(asks(**fields), timeout=WITHIN)
