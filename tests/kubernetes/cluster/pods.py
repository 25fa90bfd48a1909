"""Pods of the node: made with claims that are reserved for them, started and ended as a kubelet does that.

A pod that is to end (`deletionTimestamp`) has its containers stopped, their ends are reported to the API server, its
claims are given back, and then the API server forgets it: in this order, as a kubelet does.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from tests.kubernetes.cluster.allocator import Allocator
from tests.kubernetes.cluster.api_server import CLAIMS, PODS, ApiServer
from tests.kubernetes.cluster.kubelet import Kubelet
from tests.kubernetes.cluster.rules import JSON

SIGKILLED = 137


async def _nothing(pod: JSON) -> None: ...


class Pods:
    """`stop` is asked to stop what really runs of a pod. `late`: seconds by which the API server hears of ends."""

    def __init__(self, api: ApiServer, kubelet: Kubelet, allocator: Allocator) -> None:
        self.api, self.kubelet, self.allocator = api, kubelet, allocator
        self.stop: Callable[[JSON], Awaitable[None]] = _nothing
        self.late = 0.0
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    async def make(
        self,
        name: str,
        claims: Mapping[str, JSON],
        *,
        account: str = "default",
        images: Mapping[str, str] | None = None,
        others: tuple[str, ...] = (),
        generated: bool = False,
    ) -> JSON:
        """`claims`: by container; `others` have none. `generated`: the claims are of a template."""
        namespace = next(iter(claims.values()))["metadata"]["namespace"]
        once = list({claim["metadata"]["name"]: claim for claim in claims.values()})
        words = {claim: f"gpu-{number}" for number, claim in enumerate(once)}
        direct = {} if generated else {"resourceClaimName": ...}
        spec = {
            "nodeName": self.kubelet.node,
            "serviceAccountName": account,
            "resourceClaims": [{"name": words[claim], **({"resourceClaimName": claim} if direct else
                                {"resourceClaimTemplateName": "a-template"})} for claim in once],
            "containers": [
                *({"name": container, "image": (images or {}).get(container, "registry/program:1"),
                   "resources": {"claims": [{"name": words[claim["metadata"]["name"]]}]}}
                  for container, claim in claims.items()),
                *({"name": other, "image": "registry/other:1"} for other in others),
            ],
        }  # fmt: skip
        made = [{"name": words[claim], "resourceClaimName": claim} for claim in once] if generated else []
        status = {"phase": "Pending", "resourceClaimStatuses": made}
        pod = await self.api.put(PODS, name, {"spec": spec, "status": status}, namespace)
        for claim in once:
            await self.reserve(namespace, claim, pod)
        return pod

    async def reserve(self, namespace: str, claim: str, pod: JSON) -> None:
        found = self.api.objects[CLAIMS, namespace, claim]
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        status = {**found["status"], "reservedFor": [*found["status"].get("reservedFor", []), consumer]}
        await self.api.put(CLAIMS, claim, {**found, "status": status}, namespace)

    def claims(self, pod: JSON) -> list[JSON]:
        uid = pod["metadata"]["uid"]
        found = self.api.all(CLAIMS)
        return [each for each in found if uid in [one["uid"] for one in each["status"].get("reservedFor", [])]]

    async def start(self, pod: JSON) -> list[Any]:
        """What the kubelet is answered for each of its claims."""
        return list((await self.kubelet.prepare(*self.claims(pod))).values())

    async def end(self, pod: JSON, code: int = 0, reason: str = "", *, deleted: bool = False) -> None:
        """Its containers have ended so, and it with them. What other pods have, too, is not given back."""
        reason = reason or ("Completed" if code == 0 else "Error")
        telling = asyncio.create_task(self._tell(pod, {"exitCode": code, "reason": reason}))
        if not self.late:
            await telling
        claims = self.claims(pod)
        if last := [each for each in claims if len(each["status"]["reservedFor"]) == 1]:
            assert set((await self.kubelet.unprepare(*last)).values()) == {""}
        await telling
        for claim in claims:
            await self._unreserve(claim, pod)
        if deleted:
            await self.api.remove(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])

    async def _tell(self, pod: JSON, terminated: JSON) -> None:
        await asyncio.sleep(self.late)
        meta = pod["metadata"]
        found = self.api.objects[PODS, meta["namespace"], meta["name"]]
        statuses = [{"name": each["name"], "state": {"terminated": terminated}} for each in found["spec"]["containers"]]
        status = {**found["status"], "phase": "Succeeded", "containerStatuses": statuses}
        await self.api.put(PODS, meta["name"], {**found, "status": status}, meta["namespace"])

    async def _unreserve(self, claim: JSON, pod: JSON) -> None:
        """What nobody has any more is deleted, as one of a template is with its pod."""
        left = [each for each in claim["status"]["reservedFor"] if each["uid"] != pod["metadata"]["uid"]]
        if not left:
            await self.allocator.release(claim)
            return
        status = {**claim["status"], "reservedFor": left}
        await self.api.put(
            CLAIMS, claim["metadata"]["name"], {**claim, "status": status}, claim["metadata"]["namespace"]
        )

    async def _watch(self) -> None:
        while True:
            for pod in self.api.all(PODS):
                if pod["metadata"].get("deletionTimestamp"):
                    try:
                        await self.stop(pod)
                        await self.end(pod, SIGKILLED, deleted=True)
                    except (grpc.aio.AioRpcError, KeyError):  # the driver is away: the kubelet asks again
                        pass
            await asyncio.sleep(0.02)


def another(pod: JSON) -> JSON:
    """A pod of the same name: what a controller makes once the first is gone."""
    return {**pod, "metadata": {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"],
                                "uid": str(uuid.uuid4())}}  # fmt: skip
