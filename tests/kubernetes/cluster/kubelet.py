"""A kubelet for tests: it finds drivers in its registry, asks them who they are, and has claims prepared.

It calls over real sockets with the messages of the .proto files, waits as long as a real one, and believes nothing:
each answer has to be about the claims that were asked for and no others, of the devices that these were given.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import grpc

from scheduler.kubernetes.kubelet import contracts
from tests.kubernetes.cluster.api_server import SLICES, ApiServer
from tests.kubernetes.cluster.rules import JSON, SUBDOMAIN

PREFERRED = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
WAITS = 45.0  # seconds for a call
CDI_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9_-]*=[A-Za-z0-9][A-Za-z0-9_.:-]*")


class WrongAnswer(AssertionError):
    """What no kubelet would accept."""


class Kubelet:
    """`folder`: its own (/var/lib/kubelet). `versions`: of the DRA service that it knows, the best first.

    `drivers`: name → endpoint and version, of those that are registered; `refused`: what was said to others.
    """

    def __init__(self, folder: Path, api: ApiServer, node: str, versions: tuple[str, ...] = PREFERRED) -> None:
        self.registry, self.plugins = folder / "plugins_registry", folder / "plugins"
        for path in (self.registry, self.plugins):
            path.mkdir(parents=True, exist_ok=True)
        self.api, self.node, self.versions = api, node, versions
        self.drivers: dict[str, tuple[str, str]] = {}
        self.refused: list[str] = []
        self.asked = 0  # how often it has asked somebody who they are
        self._seen: dict[Path, int] = {}
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def restart(self) -> None:
        """It has forgotten all drivers, and takes away what this node had published, as a real one does then."""
        await self.stop()
        self.drivers, self._seen = {}, {}
        await self.wipe()
        self.start()

    async def wipe(self) -> None:
        for found in self.api.all(SLICES):
            if found["spec"]["nodeName"] == self.node:
                await self.api.remove(SLICES, found["metadata"]["name"])

    # ---- finding drivers ----

    async def _watch(self) -> None:
        while True:
            there = {path: path.stat().st_ino for path in self.registry.iterdir() if not path.name.startswith(".")}
            for path in self._seen.keys() - there.keys():
                self.drivers.pop(path.stem, None)
            for path, inode in there.items():
                if self._seen.get(path) != inode:
                    try:
                        await self._register(path)
                    except grpc.aio.AioRpcError:  # nobody listens there: a driver was killed
                        there.pop(path, None)
                        break
            self._seen = there
            await asyncio.sleep(0.02)

    async def _register(self, path: Path) -> None:
        async with grpc.aio.insecure_channel(f"unix://{path}") as channel:
            registration = contracts.REGISTRATION
            self.asked += 1
            info = await call(channel, registration, "GetInfo", {}, WAITS)
            fault = self._fault(info)
            if not fault:
                version = next(version for version in self.versions if version in info.supported_versions)
                self.drivers[info.name] = (info.endpoint, version)
            else:
                self.refused.append(fault)
            fields = {"plugin_registered": not fault, "error": fault}
            await call(channel, registration, "NotifyRegistrationStatus", fields, WAITS)

    def _fault(self, info: Any) -> str:
        endpoint = Path(info.endpoint)
        if info.type != "DRAPlugin" or not SUBDOMAIN.fullmatch(info.name):
            return f"no driver: {info.type} {info.name}"
        if not endpoint.is_absolute() or not endpoint.is_relative_to(self.plugins) or len(info.endpoint) > 107:
            return f"bad endpoint {info.endpoint}"
        if not endpoint.is_socket():
            return f"nobody is at {info.endpoint}"
        if not set(self.versions) & set(info.supported_versions):
            return f"none of {self.versions} is supported: {list(info.supported_versions)}"
        return ""

    # ---- claims ----

    async def prepare(self, *claims: JSON, driver: str = "gpushare.dev", waits: float = WAITS) -> dict[str, Any]:
        """By uid: the CDI devices by request, or the error."""
        answer = await self._ask("NodePrepareResources", claims, driver, waits)
        return {claim["metadata"]["uid"]: self._checked(claim, answer) for claim in claims}

    async def unprepare(self, *claims: JSON, driver: str = "gpushare.dev", waits: float = WAITS) -> dict[str, str]:
        answer = await self._ask("NodeUnprepareResources", claims, driver, waits)
        return {uid: result.error for uid, result in answer.claims.items()}

    async def _ask(self, method: str, claims: tuple[JSON, ...], driver: str, waits: float) -> Any:
        endpoint, version = self.drivers[driver]
        named = [{name: claim["metadata"][name] for name in ("namespace", "uid", "name")} for claim in claims]
        async with grpc.aio.insecure_channel(f"unix://{endpoint}") as channel:
            answer = await call(channel, contracts.DRA[version], method, {"claims": named}, waits)
        if set(answer.claims) != {claim["uid"] for claim in named}:
            raise WrongAnswer(f"asked for {named}, answered for {sorted(answer.claims)}")
        return answer

    def _checked(self, claim: JSON, answer: Any) -> Any:
        result = answer.claims[claim["metadata"]["uid"]]
        if result.error:
            return result.error
        results = claim["status"]["allocation"]["devices"]["results"]
        given = {(each["request"], each["pool"], each["device"]) for each in results if each["driver"] in self.drivers}
        found: dict[str, list[str]] = {}
        for device in result.devices:
            for request in device.request_names:
                if (request, device.pool_name, device.device_name) not in given:
                    raise WrongAnswer(f"{device} is not what was given: {given}")
                found.setdefault(request, []).extend(device.cdi_device_ids)
            if bad := [each for each in device.cdi_device_ids if not CDI_ID.fullmatch(each)]:
                raise WrongAnswer(f"{bad} is no CDI device")
        if found.keys() != {request for request, _, _ in given}:
            raise WrongAnswer(f"nothing for {given} in {found}")
        return found


async def call(channel: Any, service: str, method: str, fields: JSON, waits: float) -> Any:
    """Calls a method of one of our contracts, with a message of these fields."""
    described = contracts.service(service).methods_by_name[method]
    asks = contracts.message(described.input_type.full_name)
    answers = contracts.message(described.output_type.full_name)
    ask = channel.unary_unary(
        f"/{service}/{method}", request_serializer=asks.SerializeToString, response_deserializer=answers.FromString
    )
    return await ask(asks(**fields), timeout=waits)
