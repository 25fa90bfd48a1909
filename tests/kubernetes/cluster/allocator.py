"""The part of the cluster's scheduler that divides devices (KEP-5075), as a reference: it looks at slices and claims.

What it gives is what a claim's status then says. It gives nothing that is not there, so that whatever goes beyond a
card is the driver's fault.
"""

import itertools
import uuid
from fractions import Fraction
from typing import Any

from tests.kubernetes.cluster.api_server import CLAIMS, SLICES, ApiServer
from tests.kubernetes.cluster.rules import JSON, consumed, quantity

DRIVER = "gpushare.dev"
_numbers = itertools.count(1)


class Unschedulable(Exception):
    """No device has so much left."""


class Allocator:
    def __init__(self, api: ApiServer) -> None:
        self.api = api

    async def claim(
        self,
        *asked: str | None,
        name: str = "",
        namespace: str = "team-a",
        parameters: JSON | None = None,
        of_class: JSON | None = None,
    ) -> JSON:
        """A claim with a request for each of these amounts of memory, allocated. Raises Unschedulable."""
        requests = {f"gpu{number}": amount for number, amount in enumerate(asked)}
        taken: dict[str, Fraction] = {}
        results = [self._result(request, amount, taken) for request, amount in requests.items()]
        config = [
            {"source": source, "requests": [], "opaque": {"driver": DRIVER, "parameters": said}}
            for source, said in (("FromClass", of_class), ("FromClaim", parameters))
            if said is not None
        ]
        return await self.put(results, config=config, name=name, namespace=namespace)

    async def put(
        self, results: list[JSON] | None, *, config: list[JSON] | None = None, name: str = "", namespace: str = "team-a"
    ) -> JSON:
        """A claim that is allocated so; None: not at all."""
        status = {} if results is None else {"allocation": {"devices": {"results": results, "config": config or []}}}
        body = {"metadata": {"uid": str(uuid.uuid4())}, "spec": {"devices": {}}, "status": status}
        return await self.api.put(CLAIMS, name or f"claim-{next(_numbers)}", body, namespace)

    async def release(self, claim: JSON) -> None:
        """Its pod is gone: it is deleted, and what it had can be given to others."""
        await self.api.remove(CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])

    def result(self, device: str, memory: str | None, request: str = "gpu0", **more: Any) -> JSON:
        """What a claim's status says of one device. `memory` is what was consumed; None: nothing is said of it."""
        (published,) = self.api.all(SLICES) or [{"spec": {"pool": {"name": "node-1"}}}]
        found = {"request": request, "driver": DRIVER, "pool": published["spec"]["pool"]["name"], "device": device}
        if memory is not None:
            found |= {"consumedCapacity": {"memory": memory}, "shareID": str(uuid.uuid4())}
        return found | more

    def devices(self) -> list[JSON]:
        return [device for found in self.api.all(SLICES) for device in found["spec"]["devices"]]

    def used(self) -> dict[str, Fraction]:
        """By device, of all claims that are there."""
        found: dict[str, Fraction] = {}
        for claim in self.api.all(CLAIMS):
            for result in claim["status"].get("allocation", {}).get("devices", {}).get("results", []):
                part = quantity(result.get("consumedCapacity", {}).get("memory", "0"))
                found[result["device"]] = found.get(result["device"], Fraction(0)) + part
        return found

    def _result(self, request: str, asked: str | None, taken: dict[str, Fraction]) -> JSON:
        used = self.used()
        for device in self.devices():
            capacity = device["capacity"]["memory"]
            part = consumed(capacity, asked)
            held = used.get(device["name"], Fraction(0)) + taken.get(device["name"], Fraction(0))
            free = quantity(capacity["value"]) - held
            if device.get("taints") or not device.get("allowMultipleAllocations") or part is None or part > free:
                continue
            taken[device["name"]] = taken.get(device["name"], Fraction(0)) + part
            return self.result(device["name"], f"{part / 2**20}Mi", request)
        raise Unschedulable(f"{asked} for {request}")
