"""Launches that a placer has and no host has yet: their records belong to the host that takes them first.

So every change here is an update that says so, and whoever comes too late changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from shlex import quote
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from scheduler import clock
from scheduler.figures import Figures
from scheduler.store import event_log
from scheduler.store.database import Here
from scheduler.store.node_lease import held
from scheduler.store.write_behind import WriteBehind
from web import audit
from web.models import AllocationEvent, Command, Container, Gpu, Node, large
from web.services import runs
from web.services.issuing import hint
from web.services.placement import sites
from web.services.placement.policies import Choice, Wish


class PendingPlacements:
    def __init__(self, behind: WriteBehind, here: Here, figures: Figures) -> None:
        self._behind, self._here, self._figures = behind, here, figures

    async def all(self, placer: str) -> list[Container]:
        """Those that the placer has, or should have: their launch is done."""
        return await self._behind.ask(_all, placer)

    async def change(self, id_: str, **fields: Any) -> bool:
        """Whether no host has it, so that it was changed. Raises DatabaseError."""
        return await self._behind.write(_change, id_, fields)

    async def tell(self, kind: AllocationEvent.Kind, id_: str, reason: str, *times: str) -> bool:
        """The same with what happened to it by that: both are written, or neither. `times`: the fields that say when.

        What the first of them says has happened already does not happen again.
        """
        event = AllocationEvent(at=clock.now(), kind=kind, container_id=id_, detail=reason[:500])
        changed = await self._behind.write(_happen, event, times)
        if changed:
            self._figures.event(kind, 0.0)
            await self._behind.ask(event_log.tell, [event])
        return changed

    async def pass_on(self, command: UUID) -> None:
        """To the node that has its container by now, whose it is to carry out. Raises DatabaseError."""
        await self._behind.write(_pass_on, command)

    async def ended(self, ids: Sequence[str], over: Collection[str]) -> dict[str, bool]:
        """Those of these launches that have ended, wherever that was, and whether they had begun.

        One that is to be begun again has when its placer has it `over`, or when nobody wants it any more.
        """
        return await self._behind.ask(_ended, ids, over)

    async def explain(self, id_: str, reason: str) -> None:
        """Why one has not begun, of which its host knows only that."""
        await self._behind.write(_explain, id_, reason)

    async def choice(self, labels: Mapping[str, Mapping[str, str]], wish: Wish) -> Choice | None:
        """The best of these hosts by what the appliance knows, if it is to say so to a Swarm (GPUSHARE_PLACEMENT)."""
        if not sites.tells_a_swarm() or len(labels) < 2:
            return None
        return await self._behind.ask(sites.among, labels, wish)

    async def speak_for(self, whole: str) -> str:
        """From now on this host gives launches to that placer (`Placer.whole`). Or it does not, and this says why.

        Who gives launches to another one would take what waits there for taken away, and end it.
        """
        if self._behind.on_return is not None:  # a start without the database: an earlier scheduler has asked
            return ""
        return await self._behind.ask(_speak_for, self._here, whole)

    async def drained(self) -> dict[str, bool]:
        """Of each node by name, whether it is to get nothing new: it is drained, or was removed."""
        return await self._behind.ask(_drained)

    async def numbers(self, uuids: Sequence[str]) -> dict[str, list[int]]:
        """The numbers of these GPUs, by the name of their host."""
        return await self._behind.ask(_numbers, uuids) if uuids else {}


def _without_host() -> QuerySet[Container]:
    return Container.objects.live().filter(mount="", started_at=None)


def _all(placer: str) -> list[Container]:
    under_way = Command.objects.filter(kind=Command.Kind.LAUNCH, done_at=None).values("container")
    return list(_without_host().filter(engine=placer).exclude(pk__in=under_way).order_by("created_at"))


def _change(id_: str, fields: dict[str, Any]) -> bool:
    return bool(_without_host().filter(pk=id_).update(**fields))


def _happen(event: AllocationEvent, times: Sequence[str]) -> bool:
    found = _without_host().filter(**{"pk": event.container_id, times[0]: None})
    changed = bool(found.update(reason=event.detail, queue_reason="", **dict.fromkeys(times, event.at)))
    if changed:
        audit.append([event])
    return changed


def _pass_on(command: UUID) -> None:
    container = Container.objects.get(commands=command)
    Command.objects.filter(pk=command, done_at=None).update(node=container.node_id, taken_at=None)
    transaction.on_commit(partial(hint, container.node_id))


def _ended(ids: Sequence[str], over: Collection[str]) -> dict[str, bool]:
    ended = Container.objects.filter(pk__in=ids, finished_at__isnull=False).order_by()
    return {
        str(each.pk): each.started_at is not None
        for each in ended.defer(*large())
        if not each.restart or str(each.pk) in over or runs.is_over(each)
    }


def _explain(id_: str, reason: str) -> None:
    Container.objects.filter(pk=id_, started_at=None, kill_requested_at=None).update(reason=reason)


def _speak_for(here: Here, whole: str) -> str:
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


def _drained() -> dict[str, bool]:
    nodes = Node.objects.values_list("name", "drained_at", "removed_at")
    return {name: drained is not None or removed is not None for name, drained, removed in nodes}


def _numbers(uuids: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for host, number in Gpu.objects.filter(uuid__in=uuids).values_list("node__name", "index"):
        found.setdefault(host, []).append(number)
    return found
