"""Launching: from what somebody asks for to a Container row and a launch command, or one clear refusal."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction
from django.db.models import Sum

from web import audit
from web.errors import Problem, conflict
from web.history.reports import gib_hours_of_week, require_gib_hours
from web.models import Command, Container, Gpu
from web.people import allowances
from web.people.roles import Deed, require
from web.services import issuing
from web.sizes import format_size
from web.spec import mounts
from web.spec.requests import LaunchSpec

if TYPE_CHECKING:
    from django.contrib.auth.models import User

# What goes from the request to the record as it is.
_SAME = (
    "image", "command", "gpu_memory", "priority", "on_shortage", "max_wait_seconds", "ttl_seconds", "guaranteed",
    "remove_when_done", "interactive", "tty", "memory", "cpus", "volumes", "ports",
)  # fmt: skip


def launch(user: User, spec: dict[str, Any], key: str = "") -> Command:
    """Asks for a container. `key` makes it safe to repeat: the same key and request give the same command."""
    try:
        return _launch(user, LaunchSpec.parse(spec), key)
    except Problem as problem:
        told = {
            name: str(spec[name]).replace("\0", "")[:200] for name in ("image", "name", "gpu_memory") if name in spec
        }
        audit.record(user.get_username(), "launch-refused", told.get("name", ""), **told,
                     code=problem.code, message=problem.message)  # fmt: skip
        raise


def _launch(user: User, spec: dict[str, Any], key: str) -> Command:
    require(user, Deed.LAUNCH)
    mounts.require_roots(user.get_username(), spec["volumes"])
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    limits = allowances.limits_of(user)
    # Looked at before the transaction: it reads a week of events, and nobody else could write meanwhile.
    used = gib_hours_of_week(user) if limits.gib_hours is not None else 0.0
    with transaction.atomic():
        allowances.hold(user)
        if key and (earlier := _earlier(user, key, digest)):
            return earlier
        issuing.require_scheduler()
        require_gib_hours(used, limits.gib_hours)
        chosen = _choose_gpus(user, limits, spec)
        _require_free_name(spec["name"])
        container = Container(
            owner=user,
            name=spec["name"] or _make_name(spec["image"]),
            environment=spec["env"],
            gpu_count=len(chosen) or spec["gpus"],
            gpu_uuids=chosen,
            launch_key=key or None,
            launch_digest=digest if key else "",
            **{name: spec[name] for name in _SAME},
        )
        try:
            with transaction.atomic():
                container.save(force_insert=True)
        except IntegrityError:  # somebody took the name in between
            raise _name_taken(container.name) from None
        command = issuing.issue(user, Command.Kind.LAUNCH, container)
        # The names of variables, not their values: those may be secrets.
        asked = {**{name: spec[name] for name in _SAME}, "gpus": spec["gpus"], "env": sorted(spec["env"])}
        audit.record(user.get_username(), "launch", container.pk, name=container.name, **asked)
    return command


def _earlier(user: User, key: str, digest: str) -> Command | None:
    """What this key launched before. A launch that was refused frees its key: trying again has to be possible."""
    launches = Command.objects.filter(kind=Command.Kind.LAUNCH, container__owner=user, container__launch_key=key)
    earlier = launches.first()
    if earlier is None:
        return None
    container = Container.objects.filter(commands=earlier)
    if earlier.outcome == Command.Outcome.REFUSED:
        container.update(launch_key=None)
        return None
    if not container.filter(launch_digest=digest).exists():
        raise conflict("This idempotency key was used for another launch.", code="idempotency_key_reused")
    return earlier


def _require_free_name(name: str) -> None:
    if name and Container.objects.live().filter(name=name).exists():
        raise _name_taken(name)


def _name_taken(name: str) -> Problem:
    return conflict(f'A container named "{name}" is there already.', "name", code="name_taken")


def _make_name(image: str) -> str:
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", image.split("@")[0].split("/")[-1].split(":")[0]).strip("-")
    return f"{stem[:48] or 'container'}-{secrets.token_hex(4)}"


def _choose_gpus(user: User, limits: allowances.Limits, spec: dict[str, Any]) -> list[str]:
    """The GPUs by UUID, or nothing if the scheduler may choose. Refuses what can never be, or is not allowed."""
    present = {gpu.uuid: gpu for gpu in Gpu.objects.filter(present=True)}
    asked: list[str] = spec["gpus"] if isinstance(spec["gpus"], list) else []
    if unknown := [uuid for uuid in asked if uuid not in present]:
        raise Problem("unknown_gpu", f"There is no GPU {unknown[0][:64]}.", 400, "gpus")
    count = len(asked) or spec["gpus"]
    allowed = [gpu for gpu in present.values() if limits.gpus is None or gpu.uuid in limits.gpus]
    candidates = [present[uuid] for uuid in asked] or allowed
    if count > len(candidates):
        raise Problem("too_few_gpus", f"{count} GPUs were asked for; there are {len(candidates)}.", 400, "gpus")
    quota = allowances.DEFAULT_QUOTA if spec["gpu_memory"] is None else spec["gpu_memory"]
    fitting = require_capacity(candidates, quota, len(asked) or spec["gpus"])
    allowances.require_launch(user, limits, spec["image"], spec["priority"], quota * count, asked)
    if asked or limits.gpus is None:
        return asked
    return _least_promised(fitting, count)


def require_capacity(gpus: Sequence[Gpu], quota: int, count: int) -> list[Gpu]:
    """Those of `gpus` that could ever give `quota`. Refuses, with the numbers, if they are fewer than `count`."""
    fitting = [gpu for gpu in gpus if quota <= ceiling(gpu)]
    if len(fitting) < count:
        most = max((ceiling(gpu) for gpu in gpus), default=0)
        many = "it" if count == 1 else f"all {count} GPUs"
        raise Problem(
            "over_capacity",
            f"{format_size(quota)} is more than {many} can ever give: the most is {format_size(most)}.",
            400,
            "gpu_memory",
        )
    return fitting


def ceiling(gpu: Gpu) -> int:
    """What containers could hold on it together if no foreign memory were in use, in bytes."""
    return gpu.capacity + gpu.foreign


def _least_promised(gpus: Sequence[Gpu], count: int) -> list[str]:
    """The `count` GPUs of which the smallest part is promised to live containers."""
    live = Container.objects.live().filter(claims__gpu__in=gpus)
    promised = dict(live.values_list("claims__gpu").annotate(Sum("claims__quota")).order_by())
    ranked = sorted(gpus, key=lambda gpu: (promised.get(gpu.pk, 0) / max(gpu.capacity, 1), gpu.index))
    return [gpu.uuid for gpu in ranked[:count]]
