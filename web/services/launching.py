"""Launching: from what somebody asks for to a Container row and a launch command, or one clear refusal."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from web import audit
from web.errors import Problem, conflict
from web.history.reports import gib_hours_of_week, require_gib_hours
from web.models import Command, Container, Node
from web.models.functions import ask
from web.people import allowances
from web.people.roles import Deed, owner_of_launch, require
from web.services import issuing
from web.services.placing import Place, place
from web.spec import host_memory, mounts
from web.spec.asked import COLUMNS
from web.spec.requests import LaunchSpec

if TYPE_CHECKING:
    from django.contrib.auth.models import User

LONGEST_NAME = 63


def launch(user: User, spec: dict[str, Any], key: str = "", owner: str = "") -> Command:
    """Asks for a container. `key` makes it safe to repeat: the same key and request give the same command.

    `owner`: the name of somebody else whose it is to be, for a service that may do so. The audit log has both.
    """
    try:
        return _launch(user, owner_of_launch(user, owner), LaunchSpec.parse(spec), key)
    except Problem as problem:
        told: dict[str, str] = {
            name: str(spec[name]).replace("\0", "")[:200] for name in ("image", "name", "gpu_memory") if name in spec
        }
        if owner:
            told["owner"] = owner[:150]
        audit.record(user.get_username(), "launch-refused", told.get("name", ""), **told,
                     code=problem.code, message=problem.message)  # fmt: skip
        raise


def _launch(user: User, owner: User, spec: dict[str, Any], key: str) -> Command:
    require(user, Deed.LAUNCH)
    mounts.require_roots(owner.get_username(), spec["volumes"])
    mounts.require_no_session_leaks(spec["ports"])
    host_memory.require_memory(spec["memory"])
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    limits = allowances.limits_of(owner)
    # Looked at before the transaction: it reads a week of events, and nobody else could write meanwhile.
    used = gib_hours_of_week(owner) if limits.gib_hours is not None else 0.0
    with transaction.atomic():
        allowances.hold(owner)
        if key and (earlier := _earlier(owner, key, digest)):
            return earlier
        issuing.require_scheduler()
        where = within(owner, limits, used, spec)
        chosen = where.gpus
        _require_free_name(spec["name"])
        container = Container(
            owner=owner,
            name=spec["name"] or _make_name(spec["image"]),
            environment=spec["env"],
            gpu_count=len(chosen) or spec["gpus"],
            gpu_uuids=chosen,
            node=where.node,
            node_asked=spec["node"],
            node_reason=where.reason[:500],
            launch_key=key or None,
            launch_digest=digest if key else "",
            **{name: spec[name] for name in COLUMNS},
        )
        try:
            with transaction.atomic():
                container.save(force_insert=True)
        except IntegrityError:  # somebody took the name in between
            raise _name_taken(container.name) from None
        command = issuing.issue(user, Command.Kind.LAUNCH, container)
        # The names of variables, not their values: those may be secrets.
        asked = {**{name: spec[name] for name in COLUMNS}, "gpus": spec["gpus"], "env": sorted(spec["env"])}
        asked |= {"owner": owner.get_username()} if owner != user else {}
        asked |= {"node": where.node.name} if where.reason or spec["node"] else {}
        audit.record(user.get_username(), "launch", container.pk, name=container.name, **asked)
    return command


def within(
    owner: User, limits: allowances.Allowed, used: float, spec: dict[str, Any], here: Node | None = None
) -> Place:
    """Refuses a launch beyond its owner's allowance. Where it goes; `here`: where it starts anyway.

    `used`: GiB·hours of the last week. Its share of the turns is filled in. The owner is held (`allowances.hold`).
    """
    require_gib_hours(used, limits.gib_hours)
    allowances.require_image(limits, spec["image"])
    where = place(owner, limits, spec["gpus"], spec["gpu_memory"], spec["priority"], spec["node"], here,
                  asks=spec["constraints"], launches=here is None)  # fmt: skip
    spec |= allowances.share(owner, limits, spec["compute_weight"], spec["compute_limit"])
    return where


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
    if name and _is_taken(name):
        raise _name_taken(name)


def free_name(asked: str, id_: UUID) -> str:
    """What Docker calls it, as far as that is a name here and nobody who lives has it."""
    name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", asked).lstrip("_.-")[:LONGEST_NAME] or "container"
    if _is_taken(name):
        name = f"{name[: LONGEST_NAME - 9]}-{str(id_)[:8]}"
    return name


def _is_taken(name: str) -> bool:
    """On whichever host."""
    if settings.GPUSHARE_AUDIT_KEY:
        ((taken,),) = ask("SELECT gpushare_is_named(%s)", name)
        return bool(taken)
    return Container.objects.live().filter(name=name).exists()


def _name_taken(name: str) -> Problem:
    return conflict(f'A container named "{name}" is there already.', "name", code="name_taken")


def _make_name(image: str) -> str:
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", image.split("@")[0].split("/")[-1].split(":")[0]).strip("-")
    return f"{stem[:48] or 'container'}-{secrets.token_hex(4)}"
