"""What a screen needs to know, as one plain value; and the difference between two of them.

A snapshot is {"node": {…}, "nodes": {name: {…}}, "gpus": {uuid: {…}}, "containers": {id: {…}},
"attention": {key: {…}}}; sizes are bytes, times are seconds since the epoch. "node" is what holds for the appliance as
a whole. Records are flat, but for a container's "gpus" {uuid: {…}}: a delta is the fields that changed, and None for a
record that is gone. Whatever changes by the mere passing of time (ages, the clock itself, seconds computed so far) is
left out: it would make every second a change.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from web.models import Claim, Container, Gpu, Node
from web.models.hosts import large_of_nodes
from web.models.states import state_of, waiting_since
from web.services import attention
from web.times import seconds

Record = dict[str, Any]
Records = Mapping[str, Record]
Snapshot = dict[str, Any]  # "node": Record; each of SECTIONS: dict[str, Record]

ENDED_STAYS = timedelta(seconds=30)  # an ended container is sent for so long, so that screens see how it ended
SECTIONS = ("nodes", "gpus", "containers", "attention")
FIELDS = (
    "pk", "name", "owner__username", "image", "colour", "priority", "created_at", "started_at", "paused_at",
    "swapped_at", "swapped", "cannot_move", "not_restored", "no_turns",
    "suspended_since", "kill_requested_at", "finished_at", "exit_code", "reason",
    "queue_position", "queue_reason", "cpus_used", "memory_used", "node_id",
)  # fmt: skip


def read() -> Snapshot:
    """The present state, without what needs somebody."""
    nodes = {node.pk: node for node in _nodes()}
    names = {pk: node.name for pk, node in nodes.items()}
    return {
        "node": _whole(list(nodes.values())),
        "nodes": {node.name: _node(node) for node in nodes.values()},
        "gpus": _gpus(names),
        "containers": _containers(timezone.now(), names),
        "attention": {},
    }


def appliance() -> Record:
    """The section "node" alone: what is shown above every page."""
    return _whole(list(_nodes()))


def needs_somebody() -> dict[str, Record]:
    """The section "attention": it takes twice as long as all else, and nobody waits for it at the screen."""
    return _attention(attention.items())


def without_database(known: Snapshot) -> Snapshot:
    """What was known, and that nothing newer is."""
    return {**known, "attention": _attention(attention.without_database())}


def delta(old: Snapshot, new: Snapshot) -> Snapshot:
    """What to apply to `old` to get `new`; empty if nothing changed."""
    changes: Snapshot = {}
    if node := _changed(old["node"], new["node"]):
        changes["node"] = node
    for section in SECTIONS:
        if found := _difference(old[section], new[section]):
            changes[section] = found
    return changes


def _difference(before: Records, after: Records) -> dict[str, Record | None]:
    records = {key: _changed(before[key], record) if key in before else record for key, record in after.items()}
    found: dict[str, Record | None] = {key: record for key, record in records.items() if record}
    return found | dict.fromkeys(before.keys() - after.keys())


def _changed(old: Record, new: Record) -> Record:
    changed = {key: value for key, value in new.items() if key not in old or old[key] != value}
    if "gpus" in changed and "gpus" in old:
        changed["gpus"] = _difference(old["gpus"], new["gpus"])
    return changed


def _nodes() -> QuerySet[Node]:
    return Node.objects.listed().order_by("name").defer(*large_of_nodes())


def _whole(nodes: Sequence[Node]) -> Record:
    """Of one node what it says; of several what those that live have in common, and what stops everybody."""
    name = settings.GPUSHARE_NODE
    if not nodes:
        return {"name": name, "policy": "", "engine": "", "simulated": False, "error": "", "alive": False}
    if len(nodes) == 1:
        own = _node(nodes[0])
        return {key: own[key] for key in ("name", "policy", "engine", "simulated", "error", "alive")}
    living = [node for node in nodes if node.is_alive()]
    shown = living or nodes
    policies, engines = {node.policy for node in shown}, {node.engine for node in shown}
    return {
        "name": name,
        "policy": policies.pop() if len(policies) == 1 else "",
        "engine": engines.pop() if len(engines) == 1 else "",
        "simulated": all(node.simulated for node in shown),
        "error": "",
        "alive": bool(living),
    }


def _node(node: Node) -> Record:
    """When it was last seen, if it is away: for the others that is now."""
    alive = node.is_alive()
    return {
        "name": node.name,
        "policy": node.policy,
        "engine": node.engine,
        "simulated": node.simulated,
        "error": node.engine_error,
        "alive": alive,
        "seen_at": None if alive else seconds(node.seen_at),
        "drained_at": seconds(node.drained_at),
        "release": node.release,
        "labels": node.labels,
    }


def _gpus(names: Mapping[int, str]) -> dict[str, Record]:
    fields = ("index", "name", "simulated", "total", "capacity", "most", "free", "idle", "utilisation", "temperature",
              "power", "compute", "compute_why", "drained_at", "drain_reason")  # fmt: skip
    there = Gpu.objects.filter(present=True, node__in=list(names)).values("uuid", "node_id", *fields)
    return {
        gpu.pop("uuid"): {"node": names[gpu.pop("node_id")], **gpu, "drained_at": seconds(gpu["drained_at"])}
        for gpu in there
    }


def _containers(now: datetime, names: Mapping[int, str]) -> dict[str, Record]:
    shown = Q(finished_at=None) | Q(finished_at__gte=now - ENDED_STAYS)
    claims: dict[Any, dict[str, Record]] = {}
    fields = (
        "quota", "granted", "used", "peak", "overhead", "unexplained", "waiting",
        "had_lately", "due_lately", "held_back_lately", "utilisation",
    )  # fmt: skip
    for claim in Claim.objects.filter(
        Q(container__finished_at=None) | Q(container__finished_at__gte=now - ENDED_STAYS)
    ).values("container_id", "gpu__uuid", *fields):
        claims.setdefault(claim.pop("container_id"), {})[claim.pop("gpu__uuid")] = claim
    # Not as models: two hundred of those take longer to make than to read.
    found = Container.objects.filter(shown).values_list(*FIELDS, named=True)
    return {str(row.pk): _described(row, claims.get(row.pk, {}), names.get(row.node_id or 0, "")) for row in found}


def _attention(items: Sequence[attention.Item]) -> dict[str, Record]:
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
            "because": item.because,
            "command": item.command,
        }
        for place, item in enumerate(items)
    }


def _described(container: Any, claims: dict[str, Record], node: str) -> Record:
    """One container (its FIELDS) as screens know it; `claims` by GPU's UUID."""
    return {
        "node": node,
        "name": container.name,
        "owner": container.owner__username,
        "image": container.image,
        "colour": container.colour,
        "state": state_of(container).value,
        "priority": container.priority,
        "gpus": claims,
        "swapped": container.swapped,
        "cannot_move": container.cannot_move,
        "not_restored": container.not_restored,
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
