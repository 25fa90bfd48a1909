"""What a Swarm begins again, because its launch asked for that: each run is a container of its own.

The first run is the launch's own record; each later one has the same fields, and says whose run it is (`run_of`). So
each has its history, its end and its claims, on whichever node it came to. All of it is over once somebody, or a time
limit, has killed a run, or its last one was removed: from then on none begins, and the placer takes the launch back.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from web.errors import Problem, conflict
from web.history.reports import gib_hours_of_week, require_gib_hours
from web.models import Container
from web.models.records import ContainerQuerySet
from web.people import allowances
from web.people.roles import account_that_launches
from web.services.launching import free_name
from web.spec.asked import COLUMNS
from web.spec.handed import Handed


def of(first: Container) -> ContainerQuerySet:
    """All runs of a launch, the newest first."""
    return Container.objects.filter(Q(pk=first.pk) | Q(run_of=first)).order_by("-created_at")


def is_over(first: Container) -> bool:
    """Whether no further run is to begin, of one that has begun."""
    newest = of(first).first() or first
    killed = of(first).filter(kill_requested_at__isnull=False).exists()
    return not first.restart or killed or newest.removed_at is not None or _left(first) == 0


def begun(handed: Handed) -> Container | None:
    """The first run of what is begun again with this volume; None if it is the first time. Problem if it is over."""
    first = Container.objects.whole().filter(pk=handed.container, handed=handed.key).exclude(restart="").first()
    if first is None or not first.restart or first.started_at is None:
        return None
    if is_over(first):
        raise conflict("This launch has ended, or was called off.", code="called_off")
    return first


def next_of(first: Container, node: int, volume: str, mount: str, quota: int) -> Container:
    """The record of one more run, on this node. `quota`: bytes, over all its GPUs.

    Raises Problem while one lives on a node that is alive, or where its owner may not have it any more.
    """
    Container.objects.select_for_update(of=("self",), no_key=True).get(pk=first.pk)  # two at once: one after the other
    for lives in of(first).live().select_related("node"):
        if lives.node is None or lives.node.is_alive():
            raise Problem("started_already", f'"{lives.name}" runs already.', 409)
    _require_allowed(first, quota)
    again = Container(
        pk=uuid.uuid4(),
        owner=first.owner,
        node_id=node,
        volume=volume,
        mount=mount,
        run_of=first,
        gpu_count=first.gpu_count,
        gpu_uuids=first.gpu_uuids,
        environment=first.environment,
        **{name: getattr(first, name) for name in COLUMNS} | {"ttl_seconds": _left(first)},
    )
    again.name = free_name(first.name, again.pk)
    again.node_reason = f"Docker's Swarm has begun it again: it is run {of(first).count() + 1} of {first.name}."[:500]
    again.save(force_insert=True)
    return again


def _require_allowed(first: Container, quota: int) -> None:
    """As at its launch: between two runs its owner may have used the room for others."""
    owner = account_that_launches(first.owner.get_username())
    limits = allowances.limits_of(owner)
    require_gib_hours(gib_hours_of_week(owner) if limits.gib_hours is not None else 0.0, limits.gib_hours)
    allowances.hold(owner)
    allowances.require_launch(owner, limits, first.priority, quota, ())


def _left(first: Container) -> float | None:
    """Seconds of its time limit, which is one for all runs together."""
    if first.ttl_seconds is None or first.started_at is None:
        return None
    return max(0.0, (first.started_at + timedelta(seconds=first.ttl_seconds) - timezone.now()).total_seconds())
