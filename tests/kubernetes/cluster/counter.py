"""The part of a kubelet that counts devices (device plugin v1beta1), and the list of what its pods have.

Strict where the kubelet is, and as forgetful: a list over 4 MiB is dropped without a word; it takes whatever is healthy
and free where the plugin has no preference; it never says whose units are, nor when they are free again. A kubelet that
starts anew takes away all sockets of its folder.
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import grpc

from scheduler.kubernetes.kubelet import contracts
from tests.kubernetes.cluster.kubelet import WrongAnswer, call
from tests.support.eventually import PATIENCE

RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
LONGEST_LIST = 4 << 20
PLUGIN, REGISTRATION, LISTER = "v1beta1.DevicePlugin", "v1beta1.Registration", "v1.PodResourcesLister"


class Counter:
    """`devices`: name → health, as last sent; `pods`: (namespace, pod, container) → units."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lists = folder / "device-plugins", folder / "pod-resources"
        self.devices: dict[str, str] = {}
        self.pods: dict[tuple[str, str, str], list[str]] = {}
        self.registered: list[str] = []
        self.dropped = 0
        self._plugin: Path | None = None
        self._prefers = False
        self._watching: asyncio.Task[None] | None = None
        self._servers: list[Any] = []

    async def start(self) -> None:
        for folder in (self.folder, self.lists):
            folder.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                path.unlink()
        await self._serve(self.folder / "kubelet.sock", REGISTRATION, {"Register": self._register})
        await self._serve(self.lists / "kubelet.sock", LISTER, {"List": self._list})

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for server in self._servers:
            await server.stop(None)
        self._servers, self._watching, self.devices = [], None, {}

    @property
    def allocatable(self) -> int:
        return sum(health == "Healthy" for health in self.devices.values())

    async def allocate(self, pod: tuple[str, str, str], size: int) -> dict[str, Any]:
        """What its container gets; AioRpcError is what the pod's events would show."""
        assert self._plugin is not None
        used = {unit for units in self.pods.values() for unit in units}
        free = [unit for unit, health in self.devices.items() if health == "Healthy" and unit not in used]
        if len(free) < size:
            raise WrongAnswer(f"the scheduler of the cluster places nobody here: {len(free)} of {size}")
        async with grpc.aio.insecure_channel(f"unix://{self._plugin}") as channel:
            ids = await self._picked(channel, free, size)
            asked = {"container_requests": [{"devices_ids": ids}]}
            (answers,) = (await call(channel, PLUGIN, "Allocate", asked, PATIENCE)).container_responses
        self.pods[pod] = ids
        for mount in answers.mounts:
            if not os.path.exists(mount.host_path) or not mount.container_path.startswith("/"):  # noqa: ASYNC240
                raise WrongAnswer(f"{mount}")
        return {"ids": ids, "envs": dict(answers.envs), "mounts": [(m.host_path, m.container_path, m.read_only) for m in
                answers.mounts], "devices": [d.host_path for d in answers.devices]}  # fmt: skip

    async def _picked(self, channel: Any, free: list[str], size: int) -> list[str]:
        if not self._prefers:
            return free[:size]
        asked = {"available_deviceIDs": free, "must_include_deviceIDs": [], "allocation_size": size}
        answer = await call(channel, PLUGIN, "GetPreferredAllocation", {"container_requests": [asked]}, PATIENCE)
        ids = list(answer.container_responses[0].deviceIDs)
        if len(set(ids)) != len(ids) or len(ids) > size or not set(ids) <= set(free):
            raise WrongAnswer(f"it prefers {ids} of {free}")
        return ids + [unit for unit in free if unit not in ids][: size - len(ids)]

    async def _register(self, request: Any, context: Any) -> Any:
        path = self.folder / request.endpoint
        if request.version != "v1beta1" or not RESOURCE.fullmatch(request.resource_name) or not path.is_socket():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request}")
        self.registered.append(request.resource_name)
        self._plugin = path
        if self._watching is not None:
            self._watching.cancel()
        self._watching = asyncio.create_task(self._watch(path))
        return contracts.message("v1beta1.Empty")()

    async def _watch(self, path: Path) -> None:
        watched = contracts.service(PLUGIN).methods_by_name["ListAndWatch"]
        asks, answers = (contracts.message(kind.full_name) for kind in (watched.input_type, watched.output_type))
        options = [("grpc.max_receive_message_length", -1)]
        try:
            async with grpc.aio.insecure_channel(f"unix://{path}", options=options) as channel:
                self._prefers = (
                    await call(channel, PLUGIN, "GetDevicePluginOptions", {}, PATIENCE)
                ).get_preferred_allocation_available
                stream = channel.unary_stream(
                    f"/{PLUGIN}/ListAndWatch", request_serializer=asks.SerializeToString,
                    response_deserializer=answers.FromString,
                )  # fmt: skip
                async for _ in stream(asks()):
                    if _.ByteSize() > LONGEST_LIST:
                        self.dropped += 1
                        continue
                    self.devices = {device.ID: device.health for device in _.devices}
        except grpc.aio.AioRpcError:
            self.devices = dict.fromkeys(self.devices, "Unhealthy")

    async def _list(self, request: Any, context: Any) -> Any:
        pods = [
            {"namespace": namespace, "name": pod, "containers": [
                {"name": container, "devices": [{"resource_name": self.registered[-1], "device_ids": units}]}]}
            for (namespace, pod, container), units in self.pods.items()
        ]  # fmt: skip
        return contracts.message("v1.ListPodResourcesResponse")(pod_resources=pods)

    async def _serve(self, path: Path, name: str, calls: dict[str, Any]) -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((contracts.handler(name, calls),))
        server.add_insecure_port(f"unix://{path}")
        await server.start()
        self._servers.append(server)
