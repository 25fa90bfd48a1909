"""What a ResourceClaim says to us: how much of which of our cards, and how it shares. Pure.

The quota is what the cluster's scheduler has taken off the card for it (`consumedCapacity`), which may be more than
what was asked for. Parameters are opaque to the cluster: nobody but us can say that one is wrong, and this is where.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scheduler.kubernetes.api.quantity import read
from scheduler.kubernetes.names import CAPACITY, DRIVER, KIND, PARAMETERS
from web.errors import Problem
from web.spec.inside.volumes import ANY_IMAGE
from web.spec.requests import LaunchSpec

# Parameter → the field of a launch that it is, with its rules.
OPTIONS = {
    "priority": "priority",
    "weight": "compute_weight",
    "on_shortage": "on_shortage",
    "max_wait": "max_wait_seconds",
}


@dataclass(frozen=True, slots=True)
class Part:
    """What one of the claim's requests was given: so many bytes of a card."""

    request: str
    pool: str
    device: str
    memory: int


@dataclass(frozen=True, slots=True)
class Allocated:
    """A claim with its parts on our cards. `spec`: all fields of a launch, as they follow from its parameters."""

    namespace: str
    name: str
    uid: str
    parts: Sequence[Part]
    spec: Mapping[str, Any] = field(default_factory=dict)

    def quotas(self) -> dict[str, int]:
        """Bytes by device: what several requests have of one card is one quota."""
        found: dict[str, int] = {}
        for part in self.parts:
            found[part.device] = found.get(part.device, 0) + part.memory
        return found


def allocated(claim: Mapping[str, Any], uid: str, pool: str) -> Allocated:
    """What the API server has of it; `uid` as the kubelet asks for it, `pool`: this node's. Raises Problem."""
    namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
    if claim["metadata"]["uid"] != uid:
        raise _bad("deleted", "It was deleted, and another of the same name was made meanwhile.", 409)
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices")
    if devices is None:
        raise _bad("not_allocated", "It is not allocated, or not any more.", 409)
    results = [result for result in devices.get("results") or [] if result["driver"] == DRIVER]
    if not results:
        others = ", ".join(sorted({result["driver"] for result in devices.get("results") or []})) or "nobody"
        raise _bad("not_ours", f"None of its devices is of {DRIVER}: they are of {others}. Look at its DeviceClass.")
    parts = [_part(result, pool) for result in results]
    return Allocated(namespace, name, uid, parts, _spec(devices.get("config") or [], {part.request for part in parts}))


def _part(result: Mapping[str, Any], pool: str) -> Part:
    request, device = result["request"], result["device"]
    if result["pool"] != pool:
        raise _bad("elsewhere", f"{device} is of the pool {result['pool']}, and this is the node {pool}.")
    if result.get("adminAccess"):
        raise _bad("admin_access", f"The request {request} has adminAccess: it would have no quota. Ask without it.")
    consumed = (result.get("consumedCapacity") or {}).get(CAPACITY)
    if consumed is None:
        raise _bad(
            "no_memory",
            f"The request {request} was given {device} without memory (no consumedCapacity.{CAPACITY}): the cluster's "
            "scheduler does not divide devices. The feature gate DRAConsumableCapacity has to be on there, too.",
        )
    try:
        memory = read(consumed)
    except ValueError as error:
        raise _bad("bad_memory", f"The request {request}: {error}.") from None
    if memory <= 0:
        raise _bad("no_memory", f"The request {request} has no memory: {consumed}.")
    return Part(request, result["pool"], device, memory)


def usual() -> Mapping[str, Any]:
    """All fields of a launch, where nobody says any."""
    return LaunchSpec.parse({"image": ANY_IMAGE})


def _spec(config: Sequence[Mapping[str, Any]], requests: set[str]) -> Mapping[str, Any]:
    """The class's words come first in the list: the claim's own are later, and hold."""
    given: dict[str, Any] = {}
    for each in config:
        opaque = each.get("opaque") or {}
        meant = {request.partition("/")[0] for request in each.get("requests") or ()}
        if opaque.get("driver") == DRIVER and (not meant or meant & {name.partition("/")[0] for name in requests}):
            given |= _parameters(opaque.get("parameters"))
    fields = {OPTIONS[name]: value for name, value in given.items()}
    try:
        return LaunchSpec.parse({"image": ANY_IMAGE, **fields})
    except Problem as problem:
        names = {ours: theirs for theirs, ours in OPTIONS.items()}
        which = names.get(problem.field or "", problem.field)
        raise _bad("bad_parameters", f"Its parameter {which}: {problem.message}") from None


def _parameters(said: Any) -> dict[str, Any]:
    if not isinstance(said, dict) or (said.get("apiVersion"), said.get("kind")) != (PARAMETERS, KIND):
        raise _bad("bad_parameters", f"Its parameters have to be of apiVersion {PARAMETERS} and kind {KIND}.")
    given = {name: value for name, value in said.items() if name not in ("apiVersion", "kind")}
    if unknown := [name for name in given if name not in OPTIONS]:
        raise _bad(
            "bad_parameters",
            f'"{str(unknown[0])[:64]}" is no parameter of {DRIVER}. There are: {", ".join(OPTIONS)}.',
        )
    return given


def _bad(code: str, message: str, status: int = 400) -> Problem:
    return Problem(code, message, status)
