"""Inviting a host, and its joining; web/services/nodes.py removes it again.

A token is good for one name, once, and for an hour. What a host gets for it lets it write its own rows alone (rules.py)
and seal its own events alone: its key is made from ours and its name, and does not lead back.
"""

import secrets
import shlex
from datetime import timedelta
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from web import audit
from web.audit import seals
from web.errors import Problem, conflict
from web.models import Invitation, Node
from web.people.links import is_loopback
from web.people.tokens import digest
from web.schema import last_change
from web.services.joining import roles, rules, setup
from web.spec.nodes import JoinSpec, NodeNameSpec
from web.texts import fault_of_setting

LASTS = timedelta(hours=1)
PREFIX = "gpn_"
ANYWHERE = ("0.0.0.0", "::", "")  # what HOST may be, and nobody can connect to
SPENT = (
    "This token is not valid: it may have been used, it is older than an hour, or it is mistyped. "
    "`gpushare-manage node add NAME` on the appliance's host makes another."
)


def invite(actor: str, name: str) -> str:
    """A token with which the host of this name may join. One that it had before is good no more. Raises Problem."""
    name = NodeNameSpec.parse({"name": name})["name"]
    _require_clean()
    if connection.vendor != "postgresql":
        raise conflict(
            "Several nodes need PostgreSQL: this database is a file of this host. docs/nodes.md has the steps.",
            code="needs_postgresql",
        )
    roles.require_setup()
    key = PREFIX + secrets.token_urlsafe(32)
    invitation = {"digest": digest(key), "expires_at": timezone.now() + LASTS}
    with transaction.atomic():
        Invitation.objects.update_or_create(name=name, defaults=invitation)
        audit.record(actor, "node-invited", name, minutes=LASTS.seconds // 60)
    return key


def command(name: str, token: str) -> str:
    """What is typed on the host that is to join, as root."""
    return f"gpushare-node join {shlex.quote(_url())} {token} --name {name}"


def unreachable() -> str:
    """Why another host cannot join by that command; empty if nothing is known against it."""
    url = _url()
    if not is_loopback(urlsplit(url).hostname or ""):
        return ""
    return f"{url} is this host itself: set GPUSHARE_PUBLIC_URL to an address that other hosts reach."


def _url() -> str:
    """Where the web side is; by itself at all addresses, or at one."""
    host = settings.GPUSHARE_NODE if settings.HOST in ANYWHERE else settings.HOST
    return str(settings.GPUSHARE_PUBLIC_URL) or f"http://{host}:{settings.PORT}"


def join(asked: Any, address: str) -> dict[str, str]:
    """What a host at this address needs as a node, as settings by their names. Raises Problem."""
    spec = JoinSpec.parse(asked)
    good = Invitation.objects.good().filter(digest=digest(spec["token"]))
    invitation = good.first()
    if invitation is None:
        _refuse(spec["node"], 403, "bad_token", SPENT)
    if invitation.name != spec["node"]:
        _refuse(spec["node"], 403, "other_node", f'This token is for the node "{invitation.name}", and this host is '
                f'"{spec["node"]}": --name sets another name.')  # fmt: skip
    _require_same_release(spec)
    _require_clean()
    roles.require_setup()
    database, redis = _reachable(address)
    try:
        rules.apply()
        _require_closed()
        with transaction.atomic():
            if not good.delete()[0]:  # another host was faster
                raise Problem("bad_token", SPENT, 403)
            node, _ = Node.objects.update_or_create(
                name=spec["node"], defaults={"removed_at": None, "placer": "", "link_key": ""}
            )
            password = roles.give(node)
            audit.record("gpushare", "node-joined", node.name, address=address)
    except DatabaseError as error:
        raise conflict(
            f"PostgreSQL did not make a role for the node: {error}. If its functions for that are of an older release, "
            f"once more: {setup.command()}",
            code="no_role",
        ) from None
    node.refresh_from_db(fields=["role"])
    name = quote(settings.DATABASES["default"]["NAME"], safe="")
    return {
        "GPUSHARE_NODE": node.name,
        "DATABASE_URL": f"postgres://{quote(node.role, safe='')}:{password}@{database}/{name}",
        "REDIS_URL": redis,
        "GPUSHARE_AUDIT_KEY": seals.key_of(node.name).hex(),
    }


def _require_same_release(spec: dict[str, Any]) -> None:
    if spec["release"] != settings.GPUSHARE_VERSION:
        raise conflict(
            f"This appliance is release {settings.GPUSHARE_VERSION}, and the host has {spec['release']}. Install the "
            "same release there first.",
            code="other_release",
        )
    if spec["schema"] != last_change():
        raise conflict(
            f"The host's program does not match this database: its last migration is {spec['schema']}, and here it is "
            f"{last_change()}. Install the same release on both.",
            code="other_schema",
        )


def _require_closed() -> None:
    if rules.is_open():
        raise conflict(
            "Every role of this database may create objects in its schema, so a node could do what only the appliance "
            "may. As a superuser: REVOKE CREATE ON SCHEMA public FROM PUBLIC.",
            code="open_schema",
        )


def _places() -> tuple[str, str]:
    """Where other hosts find PostgreSQL (host:port) and Redis (a URL)."""
    ours = settings.DATABASES["default"]
    database = settings.GPUSHARE_NODES_DATABASE or f"{ours['HOST'] or 'localhost'}:{ours['PORT'] or 5432}"
    return database, settings.GPUSHARE_NODES_REDIS or settings.REDIS_URL


def _require_clean() -> None:
    """Refuses to hand out what would be more than one setting in the file of the joining host. Raises Problem."""
    database, redis = _places()
    given = {"GPUSHARE_NODES_DATABASE": database, "GPUSHARE_NODES_REDIS (or REDIS_URL)": redis,
             "GPUSHARE_PUBLIC_URL": _url()}  # fmt: skip
    for name, value in given.items():
        if fault := fault_of_setting(value):
            raise conflict(
                f"{name} has {fault}, which the joining host's file of settings cannot hold. No host can join until it "
                "is corrected in the settings of this appliance.",
                code="bad_setting",
            )


def _reachable(address: str) -> tuple[str, str]:
    """Where a host at this address finds PostgreSQL (host:port) and Redis (a URL). Raises Problem."""
    database, redis = _places()
    places = {"GPUSHARE_NODES_DATABASE": f"//{database}", "GPUSHARE_NODES_REDIS": redis}
    for name, place in places.items():
        if is_loopback(urlsplit(place).hostname or "") and not is_loopback(address):
            raise conflict(
                f"{place.removeprefix('//')} cannot be reached from another host. Set {name} to where this one is "
                "reached, and have it listen there.",
                code="not_reachable",
            )
    return database, redis


def _refuse(name: str, status: int, code: str, why: str) -> NoReturn:
    audit.record("", "node-refused", name, why=code)
    raise Problem(code, why, status)
