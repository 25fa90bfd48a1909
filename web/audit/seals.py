"""What a seal is a hash of: HMAC-SHA-256, by a key from SECRET_KEY. Pure.

The key means that write access to the database alone does not suffice to forge a seal. Every column of a row is in it,
its id too, and who owned the container: that is who is billed for an event.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings

if TYPE_CHECKING:
    from web.models import AllocationEvent, AuditEntry, Seal

BEGINNING = "0" * 64  # what the first seal names as the one before
DOCKER = "docker"  # who asks a host's volume plugin: all that is known
KUBELET = "kubelet"  # who asks a node's driver
SCHEDULER = "scheduler"  # a node's, for a planned launch
OF_NODES = (DOCKER, KUBELET, SCHEDULER)  # whose deeds are no person's, and the only ones that a node may seal
OF_ITS_CONTAINERS = ("begin", "claim", "mount", "taken")  # such deeds, by what they name: a container of the node
OF_REQUESTS = ("claim-refused", "mount-refused", "volume", "volume-refused", "volume-removed")  # and what was asked for


def audit_keys() -> list[bytes]:
    """The key in use first, then those of SECRET_KEYs that were replaced."""
    secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [hashlib.sha256(b"gpushare audit " + str(secret).encode()).digest() for secret in secrets]


def key_of(node: str, key: bytes = b"") -> bytes:
    """With which a node that joined seals what happens on it: made of ours (`key`), which it does not lead back to."""
    return hmac.new(key or audit_keys()[0], b"node " + node.encode(), hashlib.sha256).digest()


def own_key() -> tuple[str, bytes]:
    """Whose the key is that is used here (empty: the appliance's), and the key."""
    if settings.GPUSHARE_AUDIT_KEY:
        return settings.GPUSHARE_NODE, bytes.fromhex(settings.GPUSHARE_AUDIT_KEY)
    return "", audit_keys()[0]


def keys_for(seal: Seal) -> list[bytes]:
    """By which a seal may have been made."""
    return [key_of(seal.node, key) for key in audit_keys()] if seal.node else audit_keys()


def digest(key: bytes, seal: Seal, events: Iterable[tuple[AllocationEvent, int]], entries: Iterable[AuditEntry]) -> str:
    """A seal's hash. With each event goes its container's owner, by id."""
    text = hmac.new(key, line("seal", seal.previous, seal.number, time(seal.at), seal.rows), hashlib.sha256)
    for event, owner in events:
        text.update(event_line(event, owner))
    for entry in entries:
        text.update(entry_line(entry))
    return text.hexdigest()


def event_line(event: AllocationEvent, owner: int) -> bytes:
    return line(
        "event", event.pk, time(event.at), str(event.kind), str(event.container_id), owner, event.gpu_id, event.pid,
        int(event.bytes), event.used_after, float(event.waited), event.policy, event.detail,
    )  # fmt: skip


def entry_line(entry: AuditEntry) -> bytes:
    return line(
        "entry", entry.pk, time(entry.at), entry.action, entry.actor, entry.address, entry.subject, entry.detail
    )


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode  # made once: a batch has thousands of lines


def line(*fields: Any) -> bytes:
    return _encode(fields).encode() + b"\n"


def time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
