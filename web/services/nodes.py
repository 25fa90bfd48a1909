"""What people do with the hosts of the appliance: invite, drain, label, remove. No scheduler has to be there for it.

A node that is drained takes no new launches (placing.py); what runs there goes on. One that is removed is empty and
away; it is told of no more, its history stays, and it is back as soon as a scheduler of its name starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from django.db import transaction
from django.utils import timezone

from web import audit
from web.errors import Problem, conflict, invalid, not_found
from web.models import Container, Gpu, Invitation, Node
from web.people.roles import Deed, require
from web.services.joining import invitations, roles
from web.spec.nodes import LabelsSpec

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MOST_LABELS = 64  # of one node


def named(name: str) -> Node:
    """Raises Problem if there is none, or if it was removed."""
    if (node := Node.objects.listed().filter(name=name).first()) is None:
        raise not_found(f'There is no node "{name[:64]}".')
    return node


def invite(user: User, name: str) -> str:
    """The command with which a host of this name joins, once and within an hour. It is not kept. Raises Problem."""
    require(user, Deed.MANAGE_NODES)
    return invitations.command(name, invitations.invite(user.get_username(), name))


def drain(user: User, name: str, note: str = "") -> Node:
    """From now on it takes no new launches. Draining it again changes nothing."""
    return _draining(user, name, "drain", note)


def undrain(user: User, name: str, note: str = "") -> Node:
    return _draining(user, name, "undrain", note)


def _draining(user: User, name: str, action: str, note: str) -> Node:
    require(user, Deed.MANAGE_NODES)
    node = named(name)
    drains = action == "drain"
    with transaction.atomic():
        changed = Node.objects.filter(pk=node.pk, drained_at__isnull=drains)
        if changed.update(drained_at=timezone.now() if drains else None):
            audit.record(user.get_username(), f"{action}-node", node.name, note=note)
    node.refresh_from_db()
    return node


def label(user: User, name: str, labels: Mapping[str, str | None]) -> Node:
    """Sets these labels and leaves the others; None takes one away."""
    require(user, Deed.MANAGE_NODES)
    given = LabelsSpec.parse({"labels": labels})["labels"]
    node = named(name)
    with transaction.atomic():
        now = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
        after = {key: value for key, value in {**now.labels, **given}.items() if value is not None}
        if len(after) > MOST_LABELS:
            raise invalid(f"A node has at most {MOST_LABELS} labels; this would be {len(after)}.", "labels")
        if after != now.labels:
            Node.objects.filter(pk=node.pk).update(labels=after)
            audit.record(user.get_username(), "label-node", node.name, before=now.labels, labels=after)
    node.refresh_from_db()
    return node


def remove(user: User, name: str) -> None:
    """Raises Problem while its scheduler lives, or while a container is thought to live there."""
    require(user, Deed.MANAGE_NODES)
    node = named(name)
    _require_left(node)
    expel(user.get_username(), node.name)


def expel(actor: str, name: str) -> bool:
    """Takes a node's rights in the database away at once, whatever it does, and its invitation. Raises Problem.

    Whether it is told of no more: that is only if it is away and empty. Else people see what it was last known to hold.
    """
    node = Node.objects.filter(name=name).first()
    with transaction.atomic():
        invited = Invitation.objects.filter(name=name).delete()[0]
        if node is None and not invited:
            raise not_found(f'There is no node "{name[:64]}".')
        audit.record(actor, "node-removed", name)
        if node is None:
            return True
        roles.take(node)
        try:
            _require_left(node)
        except Problem:
            return False
        Node.objects.filter(pk=node.pk, removed_at=None).update(removed_at=timezone.now(), drained_at=None)
        Gpu.objects.filter(node=node).update(present=False)
    return True


def _require_left(node: Node) -> None:
    """Refuses while its scheduler lives, or while a container is thought to live there."""
    if node.is_alive():
        raise conflict(f'The scheduler of "{node.name}" lives. Drain the node, wait, and stop its scheduler first.',
                       code="node_alive")  # fmt: skip
    live = Container.objects.live().filter(node=node)
    if count := live.count():
        names = ", ".join(live.order_by("name").values_list("name", flat=True)[:3])
        raise conflict(
            f'"{node.name}" is away with {count} container{"s" * (count > 1)} that may live '
            f"({names}{', …' * (count > 3)}). Start its scheduler: it says what became of them.",
            code="node_holds",
        )
