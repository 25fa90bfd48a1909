"""What an API server accepts of a ResourceSlice, by the published API (resource.k8s.io/v1) and the features it has.

Stricter than a real one in two points, which a driver should keep anyway: an unknown field is refused, not dropped; and
a pool that changes has a higher generation.
"""

import copy
import re
from fractions import Fraction
from typing import Any

JSON = dict[str, Any]
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)")
SCALES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class Invalid(Exception):
    """422: what is wrong with the object."""


def quantity(text: Any) -> Fraction:
    match = QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise Invalid(f"quantities must match the regular expression: {text!r}")
    return Fraction(match[1]) * SCALES[match[2]]


def kept(spec: JSON, *, consumable: bool, taints: bool) -> JSON:
    """What a server with these features stores of a slice: the fields of others vanish without a word."""
    spec = copy.deepcopy(spec)
    for device in spec["devices"]:
        if not consumable:
            device.pop("allowMultipleAllocations", None)
            for capacity in device.get("capacity", {}).values():
                capacity.pop("requestPolicy", None)
        if not taints:
            device.pop("taints", None)
        for taint in device.get("taints", []):
            taint.setdefault("timeAdded", "2026-11-23T00:00:00Z")
    return spec


def check_slice(spec: JSON) -> None:
    only(spec, "spec", driver=str, nodeName=str, pool=dict, devices=list)
    if not SUBDOMAIN.fullmatch(spec["driver"]) or len(spec["driver"]) > 63:
        raise Invalid("spec.driver: must be a DNS subdomain of at most 63 characters")
    only(spec["pool"], "spec.pool", name=str, generation=int, resourceSliceCount=int)
    if spec["pool"]["generation"] < 0 or spec["pool"]["resourceSliceCount"] < 1:
        raise Invalid("spec.pool: generation must not be negative, resourceSliceCount must be positive")
    names = [device.get("name") for device in spec["devices"]]
    if len(names) > 128 or len(set(names)) != len(names):
        raise Invalid("spec.devices: at most 128, each with a name of its own")
    for device in spec["devices"]:
        check_device(device)


def check_device(device: JSON) -> None:
    only(device, "device", name=str, allowMultipleAllocations=bool, attributes=dict, capacity=dict, taints=list)
    if not LABEL.fullmatch(device["name"]):
        raise Invalid(f"device name {device['name']!r}: must be a DNS label")
    for name, value in device.get("attributes", {}).items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name) or len(value) != 1:
            raise Invalid(f"attribute {name!r}: a C identifier of at most 32 characters, and exactly one value")
        ((kind, text),) = value.items()
        if kind != "string" or not isinstance(text, str) or not 0 < len(text) <= 64:
            raise Invalid(f"attribute {name!r}: a string of at most 64 characters")
    for taint in device.get("taints", []):
        only(taint, "taint", key=str, effect=str, timeAdded=str)
        if taint["effect"] not in ("None", "NoSchedule", "NoExecute"):
            raise Invalid(f"taint: {taint['effect']!r} is no effect")
    for capacity in device.get("capacity", {}).values():
        check_capacity(capacity, bool(device.get("allowMultipleAllocations")))


def check_capacity(capacity: JSON, several: bool) -> None:
    only(capacity, "capacity", value=str, requestPolicy=dict)
    value = quantity(capacity["value"])
    if (policy := capacity.get("requestPolicy")) is None:
        return
    if not several:
        raise Invalid("requestPolicy: only where allowMultipleAllocations is true")
    only(policy, "requestPolicy", default=str, validRange=dict)
    valid = policy["validRange"]
    only(valid, "validRange", min=str, max=str, step=str)
    if "default" not in policy:
        raise Invalid("requestPolicy: validRange needs a default")
    default, least = quantity(policy["default"]), quantity(valid["min"])
    most = quantity(valid["max"]) if "max" in valid else value
    step = quantity(valid["step"]) if "step" in valid else Fraction(1)
    if not least <= default <= most <= value:
        raise Invalid("requestPolicy: min <= default <= max <= value")
    if (default - least) % step or (most - least) % step:
        raise Invalid("requestPolicy: default and max have to be steps away from min")


def consumed(capacity: JSON, asked: str | None) -> Fraction | None:
    """What a request takes of a capacity, by its policy; None if the policy forbids it."""
    policy = capacity.get("requestPolicy")
    if policy is None:
        return quantity(capacity["value"])
    valid = policy["validRange"]
    wanted = quantity(policy["default"] if asked is None else asked)
    least, step = quantity(valid["min"]), quantity(valid.get("step", "1"))
    wanted = max(wanted, least)
    wanted = least + -(-(wanted - least) // step) * step
    return None if wanted > quantity(valid.get("max", capacity["value"])) else wanted


def only(found: JSON, where: str, **fields: type) -> None:
    for name, value in found.items():
        if name not in fields:
            raise Invalid(f"strict decoding error: unknown field {where}.{name}")
        if type(value) is not fields[name]:
            raise Invalid(f"{where}.{name}: must be of type {fields[name].__name__}")
