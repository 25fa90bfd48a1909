"""The pods whose claims we have prepared: who they are, how they ended, and how one is ended.

A claim names its pods (`status.reservedFor`), and a pod says which of its containers have the claim. That is what
people see of a container of a cluster. What ends a pod is its deletion, or an eviction, which asks the cluster's
disruption budgets first; both only while it is the pod that was meant: another of the same name is not touched.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any, NamedTuple

from scheduler import clock
from scheduler.kubernetes.api.client import JSON, Api, ApiError, path_of
from scheduler.kubernetes.engine import UNKNOWN
from scheduler.kubernetes.names import DRIVER
from scheduler.kubernetes.words import plain
from web.errors import Problem

log = logging.getLogger(__name__)

TELLS_WITHIN = 2.0  # seconds that the kubelet's call is held up for its API server to know how the programs ended
MOST = 16  # pods of one claim that are shown; all of them are ended
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")
STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


@dataclass(frozen=True, slots=True)
class Pod:
    """`containers`: those of it that have the claim, as (name, image); `whole`: there are no others."""

    name: str
    uid: str
    account: str
    containers: Sequence[tuple[str, str]]
    whole: bool

    def as_dict(self) -> dict[str, Any]:
        """For its record, and so for people and programs."""
        fields = asdict(self) | {"containers": [name for name, _ in self.containers]}
        del fields["whole"]
        return fields

    def title(self) -> str:
        """`pod`, or `pod.container` where it has others without the claim."""
        return self.name if self.whole or len(self.containers) != 1 else f"{self.name}.{self.containers[0][0]}"


class End(NamedTuple):
    """How the programs of a claim ended. `exit_code` is None where nobody knows."""

    exit_code: int | None
    reason: str


class CannotEnd(Exception):
    """The cluster does not end a pod; the message is for people."""


def reserved(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and uid of each pod that may use the claim."""
    given = (claim.get("status") or {}).get("reservedFor") or []
    return [(it["name"], it["uid"]) for it in given if it.get("resource") == "pods" and not it.get("apiGroup")]


def describe(pod: Mapping[str, Any], claim: str) -> Pod:
    """What there is to say of a pod with the claim of this name."""
    spec, status = pod["spec"], pod.get("status") or {}
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or []}
    words = {
        each["name"]
        for each in spec.get("resourceClaims") or []
        if (each.get("resourceClaimName") or made.get(each["name"])) == claim
    }
    all_ = [each for kind in CONTAINERS for each in spec.get(kind) or []]
    having = [
        each for each in all_ if words & {one["name"] for one in (each.get("resources") or {}).get("claims") or []}
    ]
    return Pod(
        pod["metadata"]["name"],
        pod["metadata"]["uid"],
        spec.get("serviceAccountName") or "default",
        [(each["name"], plain(each.get("image") or "")) for each in having],
        len(having) == len(all_),
    )


def describe_holder(pod: Mapping[str, Any], container: str) -> Pod:
    """Of a pod with units that are counted: which container has them, the kubelet says."""
    all_ = [each for kind in CONTAINERS for each in pod["spec"].get(kind) or []]
    having = [(each["name"], plain(each.get("image") or "")) for each in all_ if each["name"] == container]
    account = pod["spec"].get("serviceAccountName") or "default"
    return Pod(pod["metadata"]["name"], pod["metadata"]["uid"], account, having, len(all_) == 1)


def ended(pod: Mapping[str, Any], names: Sequence[str]) -> End | None:
    """How these containers of it ended; None while one of them has not, as far as the API server knows."""
    status = pod.get("status") or {}
    states = {each["name"]: each for kind in STATUSES for each in status.get(kind) or []}
    ends = [(name, _terminated(states.get(name))) for name in names]
    if not ends or not all(end for _, end in ends):
        return None
    worst = next(((name, end) for name, end in ends if end and end.get("exitCode")), ends[0])
    name, end = worst[0], worst[1] or {}
    code = int(end.get("exitCode") or 0)
    why = [text for text in (end.get("reason"), end.get("message")) if text and text not in ("Completed", "Error")]
    said = f": {', '.join(map(plain, why))}" if why else ""
    return End(code, f"The container {name} of the pod {pod['metadata']['name']}{said}."[:500] if why else "")


def _terminated(status: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = ((status or {}).get("state") or {}).get("terminated")
    return found


class Holders:
    """Which claim of ours each container has: one, as a container has one place for the socket."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], str] = {}  # pod's uid and container → claim's uid

    def take(self, claim: str, pods: Sequence[Pod]) -> None:
        """Raises Problem, and has changed nothing."""
        wanted = [(pod, name) for pod in pods for name, _ in pod.containers]
        for pod, name in wanted:
            if self._claims.get((pod.uid, name), claim) != claim:
                raise Problem(
                    "several_claims",
                    f"The container {name} of the pod {pod.name} has another claim of {DRIVER} already. Ask for both "
                    "in one claim, as two requests of it.",
                    409,
                )
        self._claims |= {(pod.uid, name): claim for pod, name in wanted}

    def free(self, claim: str) -> None:
        self._claims = {holder: other for holder, other in self._claims.items() if other != claim}


class Pods:
    """`way`: how one is ended: delete or evict (GPUSHARE_KUBERNETES_KILL)."""

    def __init__(self, api: Api, way: str) -> None:
        self.api, self._way = api, way

    async def of(self, claim: Mapping[str, Any]) -> list[Pod]:
        """Those that the claim is reserved for and that are there, up to MOST of them. Raises ApiError."""
        return [describe(pod, claim["metadata"]["name"]) async for pod in self._there(claim)]

    async def how_ended(self, namespace: str, known: Sequence[Pod]) -> End | None:
        """None if that is not known yet. Raises ApiError."""
        ends = []
        for pod in known:
            found = await self._get(namespace, pod.name, pod.uid)
            ends.append(found and ended(found, [name for name, _ in pod.containers]))
        sure = [end for end in ends if end]
        if not sure or len(sure) < len(ends):
            return None
        return next((end for end in sure if end.exit_code), sure[0])

    async def wait_for_end(self, namespace: str, known: Sequence[Pod]) -> End:
        """The kubelet tells the API server at about the time at which it tells us: that is waited for a moment."""
        deadline = clock.monotonic() + TELLS_WITHIN
        while known and clock.monotonic() < deadline:
            try:
                async with asyncio.timeout(TELLS_WITHIN):
                    if found := await self.how_ended(namespace, known):
                        return found
            except (ApiError, TimeoutError) as error:
                log.info("how the pod %s/%s ended is not known: %s", namespace, known[0].name, error)
                break
            await asyncio.sleep(0.25)
        return End(None, UNKNOWN)

    async def is_over(self, namespace: str, pod: Pod) -> bool:
        """Whether nothing of it runs any more, nor will. Raises ApiError."""
        found = await self._get(namespace, pod.name, pod.uid)
        return found is None or (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")

    async def holder(self, namespace: str, name: str, container: str) -> Pod | None:
        """None if it is gone. Raises ApiError."""
        found = await self._get(namespace, name, "")
        return describe_holder(found, container) if found else None

    async def end(self, namespace: str, meant: Sequence[tuple[str, str]], grace: float) -> None:
        """Has these pods ended, by name and uid, with `grace` seconds each (0: at once). CannotEnd or ApiError."""
        for name, uid in meant:
            try:
                await self._end(namespace, name, uid, max(1, ceil(grace)))
            except ApiError as error:
                if error.status == 429 and self._way == "evict":
                    raise CannotEnd(
                        f"The pod {namespace}/{name} may not be evicted now, as a PodDisruptionBudget says: {error} "
                        "It is tried again. GPUSHARE_KUBERNETES_KILL=delete would not ask."
                    ) from None
                if error.status not in (404, 409):  # gone, or another of the same name
                    raise

    async def _end(self, namespace: str, name: str, uid: str, grace: int) -> None:
        """At once is a second: with 0 the API server would forget the pod while its programs still run."""
        path = _path(namespace, name)
        options: JSON = {"gracePeriodSeconds": grace, "preconditions": {"uid": uid}}
        if self._way == "delete":
            await self.api.delete(path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})
            return
        meta = {"name": name, "namespace": namespace}
        body: JSON = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        await self.api.create(f"{path}/eviction", body)

    async def _there(self, claim: Mapping[str, Any]) -> Any:
        for name, uid in reserved(claim)[:MOST]:
            if found := await self._get(claim["metadata"]["namespace"], name, uid):
                yield found

    async def _get(self, namespace: str, name: str, uid: str) -> JSON | None:
        try:
            found = await self.api.get(_path(namespace, name))
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        return found if uid in ("", found["metadata"]["uid"]) else None


def _path(namespace: str, name: str) -> str:
    return path_of("/api/v1", "namespaces", namespace, "pods", name)


def recalled(kept: Sequence[Mapping[str, Any]]) -> Iterator[Pod]:
    """From a record: what of it is needed to ask how they ended."""
    for each in kept:
        yield Pod(each["name"], each["uid"], each["account"], [(name, "") for name in each["containers"]], whole=True)
