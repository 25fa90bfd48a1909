"""Launching: from what somebody asks for to a Container row and a launch command, or one clear refusal."""

import hashlib
import json
import re
import secrets
from typing import Any

from django.contrib.auth.models import User

from web.errors import conflict
from web.models import Command, Container
from web.people.roles import owner_of_launch
from web.services import admission, issuing
from web.services.placement.place import place
from web.spec import quotas
from web.spec.inside import mounts
from web.spec.requests import COLUMNS, LaunchSpec


def launch(user: User, spec: dict[str, Any], key: str = "", owner: str = "") -> Command:
    """Asks for a container. `key` makes it safe to repeat: the same key and request give the same command.

    `owner`: the name of somebody else whose it is to be, for a service that may do so. The audit log has both.
    """
    detail = admission.printable({name: spec[name] for name in ("image", "name", "gpu_memory") if name in spec})
    detail |= {"owner": owner[:150]} if owner else {}
    with admission.refusals_recorded(user.get_username(), "launch-refused", detail.get("name", ""), **detail):
        return _launch(user, owner_of_launch(user, owner), LaunchSpec.parse(spec), key)


def _launch(user: User, owner: User, spec: dict[str, Any], key: str) -> Command:
    require_sensible(owner, spec)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    with admission.held(owner) as account:
        if key and (earlier := _earlier(owner, key, digest)):
            return earlier
        where = place(account.limits, spec["gpus"], spec["gpu_memory"], spec["node"], asks=spec["constraints"],
                      launches=True, owner=owner.get_username(), lasts=spec["ttl_seconds"])  # fmt: skip
        if spec["name"] and admission.is_taken(spec["name"]):
            raise admission.name_taken(spec["name"])
        # The names of variables, not their values: those may be secrets.
        detail = {**{name: spec[name] for name in COLUMNS}, "gpus": spec["gpus"], "env": sorted(spec["env"])}
        detail |= {"node": where.node.name} if where.reason or spec["node"] else {}
        container = admission.admit(
            account,
            where,
            spec,
            by=user.get_username(),
            action="launch",
            detail=detail,
            name=spec["name"] or make_name(spec["image"]),
            environment=spec["env"],
            gpu_count=len(where.gpus) or spec["gpus"],
            gpu_uuids=where.gpus,
            node_asked=spec["node"],
            launch_key=key or None,
            launch_digest=digest if key else "",
        )
        return issuing.issue(user, Command.Kind.LAUNCH, container)


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


def require_sensible(owner: User, spec: dict[str, Any]) -> None:
    """What no waiting could mend, whoever else has what. Raises Problem."""
    mounts.require_roots(owner.get_username(), spec["volumes"])
    mounts.require_no_session_leaks(spec["ports"])
    quotas.require_host_memory(spec["memory"])


def make_name(image: str) -> str:
    stem = re.sub(r"[^a-zA-Z0-9]+", "-", image.split("@")[0].split("/")[-1].split(":")[0]).strip("-")
    return f"{stem[:48] or 'container'}-{secrets.token_hex(4)}"
