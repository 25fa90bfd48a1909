"""What a screen needs to know, as one plain value; and the difference between two of them.

A snapshot is {"node": {…}, "gpus": {uuid: {…}}, "containers": {id: {…}}, "attention": {key: {…}}}; sizes are bytes,
times are seconds since the epoch. Records are flat, so a delta is simply the fields that changed, and None for a record
that is gone. Whatever changes by the mere passing of time (ages, the clock itself) is left out: it would make every
second a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from web.models import Claim, Container, Gpu, Node
from web.services import attention
from web.times import seconds

Record = dict[str, Any]
Snapshot = dict[str, Any]  # "node": Record; each of SECTIONS: dict[str, Record]

ENDED_STAYS = timedelta(seconds=30)  # so long is an ended container still told about: screens see how it ended
SECTIONS = ("gpus", "containers", "attention")
FIELDS = (
    "name", "owner__username", "image", "colour", "priority", "created_at", "started_at", "paused_at",
    "swapped_at", "swapped", "no_turns", "suspended_since", "kill_requested_at", "finished_at", "exit_code", "reason",
    "queue_position", "queue_reason", "cpus_used", "memory_used",
)  # fmt: skip


def read() -> Snapshot:
    """The present state."""
    now = timezone.now()
    return {"node": _node(), "gpus": _gpus(), "containers": _containers(now), "attention": _told(attention.items(now))}


def without_database(known: Snapshot) -> Snapshot:
    """What was known, and that nothing newer is."""
    return {**known, "attention": _told(attention.without_database())}


def delta(old: Snapshot, new: Snapshot) -> Snapshot:
    """What to apply to `old` to get `new`; empty if nothing changed."""
    changes: Snapshot = {}
    if node := _changed(old["node"], new["node"]):
        changes["node"] = node
    for section in SECTIONS:
        before, after = old[section], new[section]
        records = {key: _changed(before[key], record) if key in before else record for key, record in after.items()}
        found: dict[str, Record | None] = {key: record for key, record in records.items() if record}
        found.update(dict.fromkeys(before.keys() - after.keys()))
        if found:
            changes[section] = found
    return changes


def _changed(old: Record, new: Record) -> Record:
    return {key: value for key, value in new.items() if key not in old or old[key] != value}


def _node() -> Record:
    node = Node.here()
    if node is None:
        name = settings.GPUSHARE_NODE
        return {"name": name, "policy": "", "engine": "", "simulated": False, "error": "", "alive": False}
    return {
        "name": node.name,
        "policy": node.policy,
        "engine": node.engine,
        "simulated": node.simulated,
        "error": node.engine_error,
        "alive": node.is_alive(),
    }


def _gpus() -> dict[str, Record]:
    fields = ("index", "name", "simulated", "total", "capacity", "most", "free", "idle", "foreign", "real", "context",
              "utilisation", "temperature", "power", "compute", "compute_why")  # fmt: skip
    return {gpu.pop("uuid"): gpu for gpu in Gpu.objects.filter(present=True).values("uuid", *fields)}


def _containers(now: datetime) -> dict[str, Record]:
    shown = Q(finished_at=None) | Q(finished_at__gte=now - ENDED_STAYS)
    claims: dict[Any, dict[str, Record]] = {}
    fields = (
        "quota", "granted", "used", "peak", "overhead", "unexplained", "waiting",
        "had", "due", "held_back", "had_lately", "due_lately", "held_back_lately",
        "utilisation",
    )  # fmt: skip
    for claim in Claim.objects.filter(
        Q(container__finished_at=None) | Q(container__finished_at__gte=now - ENDED_STAYS)
    ).values("container_id", "gpu__uuid", *fields):
        claims.setdefault(claim.pop("container_id"), {})[claim.pop("gpu__uuid")] = claim
    return {
        str(container.pk): describe(container, claims.get(container.pk, {}))
        for container in Container.objects.filter(shown).select_related("owner").only(*FIELDS)
    }


def _told(items: Sequence[attention.Item]) -> dict[str, Record]:
    """`place`: what stops everybody comes first."""
    return {
        item.key: {
            "place": place,
            "kind": item.kind.value,
            "person": item.person,
            "message": item.message,
            "since": seconds(item.since),
            "container": str(item.container.pk) if item.container else None,
            "acts": list(item.acts),
        }
        for place, item in enumerate(items)
    }


def describe(container: Container, claims: dict[str, Record]) -> Record:
    """One container as screens know it; `claims` by GPU's UUID."""
    return {
        "name": container.name,
        "owner": container.owner.get_username(),
        "image": container.image,
        "colour": container.colour,
        "state": container.state.value,
        "priority": container.priority,
        "gpus": claims,
        "swapped": container.swapped,
        "no_turns": container.no_turns,
        "suspended_since": seconds(container.waiting_since),
        "queue_position": container.queue_position,
        "queue_reason": container.queue_reason,
        "created_at": seconds(container.created_at),
        "started_at": seconds(container.started_at),
        "finished_at": seconds(container.finished_at),
        "cpus_used": container.cpus_used,
        "memory_used": container.memory_used,
        "exit_code": container.exit_code,
        "reason": container.reason,
    }
