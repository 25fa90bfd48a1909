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
from web.models.states import state_of, waiting_since
from web.services import attention
from web.times import seconds

Record = dict[str, Any]
Snapshot = dict[str, Any]  # "node": Record; each of SECTIONS: dict[str, Record]

ENDED_STAYS = timedelta(seconds=30)  # so long is an ended container still told about: screens see how it ended
SECTIONS = ("gpus", "containers", "attention")
FIELDS = (
    "pk", "name", "owner__username", "image", "colour", "priority", "created_at", "started_at", "paused_at",
    "swapped_at", "swapped", "no_turns", "suspended_since", "kill_requested_at", "finished_at", "exit_code", "reason",
    "queue_position", "queue_reason", "cpus_used", "memory_used",
)  # fmt: skip


def read() -> Snapshot:
    """The present state, without what needs somebody."""
    return {"node": _node(), "gpus": _gpus(), "containers": _containers(timezone.now()), "attention": {}}


def needs_somebody() -> dict[str, Record]:
    """The section "attention": it takes twice as long as all else, and nobody waits for it at the screen."""
    return _told(attention.items())


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
    # Not as models: two hundred of those take longer to make than to read.
    found = Container.objects.filter(shown).values_list(*FIELDS, named=True)
    return {str(row.pk): _described(row, claims.get(row.pk, {})) for row in found}


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
            "command": item.command,
        }
        for place, item in enumerate(items)
    }


def _described(container: Any, claims: dict[str, Record]) -> Record:
    """One container (its FIELDS) as screens know it; `claims` by GPU's UUID."""
    return {
        "name": container.name,
        "owner": container.owner__username,
        "image": container.image,
        "colour": container.colour,
        "state": state_of(container).value,
        "priority": container.priority,
        "gpus": claims,
        "swapped": container.swapped,
        "no_turns": container.no_turns,
        "suspended_since": seconds(waiting_since(container)),
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
