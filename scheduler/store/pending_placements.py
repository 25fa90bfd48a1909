"""Launches that a placer has and no host has yet: their records belong to the host that takes them first.

So every change here is an update that says so, and whoever comes too late changes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from shlex import quote
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from scheduler.store.database import Here
from scheduler.store.node_lease import held
from web import audit
from web.models import AllocationEvent, Command, Container, Gpu, Node, large
from web.services import runs
from web.services.issuing import hint


def _without_host() -> QuerySet[Container]:
    return Container.objects.live().filter(mount="", started_at=None)


def all_of(placer: str) -> list[Container]:
    """Those that the placer has, or should have: their launch is done."""
    under_way = Command.objects.filter(kind=Command.Kind.LAUNCH, done_at=None).values("container")
    return list(_without_host().filter(engine=placer).exclude(pk__in=under_way).order_by("created_at"))


def change(id_: str, fields: Mapping[str, Any]) -> bool:
    """Whether no host has it, so that it was changed."""
    return bool(_without_host().filter(pk=id_).update(**fields))


def happen(event: AllocationEvent, times: Sequence[str]) -> bool:
    """The same with what happened to it by that: both are written, or neither. `times`: the fields that say when.

    What the first of them says has happened already does not happen again.
    """
    found = _without_host().filter(**{"pk": event.container_id, times[0]: None})
    changed = bool(found.update(reason=event.detail, queue_reason="", **dict.fromkeys(times, event.at)))
    if changed:
        audit.append([event])
    return changed


def pass_on(command: UUID) -> None:
    """To the node that has its container by now, whose it is to carry out."""
    container = Container.objects.get(commands=command)
    Command.objects.filter(pk=command, done_at=None).update(node=container.node_id, taken_at=None)
    transaction.on_commit(partial(hint, container.node_id))


def ended(ids: Sequence[str], over: Collection[str]) -> dict[str, bool]:
    """Those of these launches that have ended, wherever that was, and whether they had begun.

    One that is to be begun again has when its placer has it `over`, or when nobody wants it any more.
    """
    found = Container.objects.filter(pk__in=ids, finished_at__isnull=False).order_by()
    return {
        str(each.pk): each.started_at is not None
        for each in found.defer(*large())
        if not each.restart or str(each.pk) in over or runs.is_over(each)
    }


def explain(id_: str, reason: str) -> None:
    """Why one has not begun, of which its host knows only that."""
    Container.objects.filter(pk=id_, started_at=None, kill_requested_at=None).update(reason=reason)


def speak_for(here: Here, whole: str) -> str:
    """From now on this host gives launches to that placer (`Placer.whole`). Or it does not, and this says why.

    Who gives launches to another one would take what waits there for taken away, and end it.
    """
    with transaction.atomic():
        listed = Node.objects.listed().select_for_update(no_key=True).order_by("pk")  # two at once: one after the other
        placers = {each.pk: each for each in listed.only("name", "placer") if " " in each.placer}
        other = next((each for pk, each in placers.items() if pk != here.node and each.placer != whole), None)
        if other is not None:
            return (
                f'This host and "{other.name}" speak for two different Swarms, and an appliance gives launches to one: '
                "each would end what waits in the other's. Set GPUSHARE_ENGINE=docker on one of them; or, if "
                f'"{other.name}" is gone for good, `gpushare nodes {quote(other.name)} --remove`.'
            )
        held(here).update(placer=whole)
    return ""


def drained() -> dict[str, bool]:
    """Of each node by name, whether it is to get nothing new: it is drained, or was removed."""
    nodes = Node.objects.values_list("name", "drained_at", "removed_at")
    return {name: any(times) for name, *times in nodes}


def drained_cards() -> dict[str, set[int]]:
    """The numbers of the GPUs that are out of service, by the name of their host."""
    found: dict[str, set[int]] = {}
    for host, number in Gpu.objects.exclude(drained_at=None).values_list("node__name", "index"):
        found.setdefault(host, set()).add(number)
    return found


def numbers(uuids: Sequence[str]) -> dict[str, list[int]]:
    """The numbers of these GPUs, by the name of their host."""
    found: dict[str, list[int]] = {}
    for host, number in Gpu.objects.filter(uuid__in=uuids).values_list("node__name", "index"):
        found.setdefault(host, []).append(number)
    return found
