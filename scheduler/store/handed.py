"""Launches that were handed to a placer and that no host has yet: their records belong to whoever takes them first.

So every change here is an update that says so, and whoever comes too late changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db.models import QuerySet

from scheduler.store.behind import WriteBehind
from web.models import Command, Container, Gpu, Node, large
from web.services import choosing, runs
from web.spec.where.choosing import Choice, Wish


class Handed:
    def __init__(self, behind: WriteBehind) -> None:
        self._behind = behind

    async def all(self, placer: str) -> list[Container]:
        """Those that the placer has, or should have: their launch is done."""
        return await self._behind.ask(_all, placer)

    async def change(self, id_: str, **fields: Any) -> bool:
        """Whether no host has it, so that it was changed. Raises DatabaseError."""
        return await self._behind.ask(_change, id_, fields)

    async def ended(self, ids: Sequence[str], over: Collection[str]) -> dict[str, bool]:
        """Those of these launches that have ended, wherever that was, and whether they had begun.

        One that is to be begun again has when its placer has it `over`, or when nobody wants it any more.
        """
        return await self._behind.ask(_ended, ids, over)

    async def explain(self, id_: str, reason: str) -> None:
        """Why one has not begun, of which its host knows only that."""
        await self._behind.ask(_explain, id_, reason)

    async def choice(self, labels: Mapping[str, Mapping[str, str]], wish: Wish) -> Choice | None:
        """The best of these hosts by what the appliance knows, if it is to say so to a Swarm (GPUSHARE_PLACEMENT)."""
        if not choosing.tells_a_swarm() or len(labels) < 2:
            return None
        return await self._behind.ask(choosing.among, labels, wish)

    async def drained(self) -> list[str]:
        """The names of the nodes that are to get nothing new."""
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


def _ended(ids: Sequence[str], over: Collection[str]) -> dict[str, bool]:
    ended = Container.objects.filter(pk__in=ids, finished_at__isnull=False).order_by()
    return {
        str(each.pk): each.started_at is not None
        for each in ended.defer(*large())
        if not each.restart or str(each.pk) in over or runs.is_over(each)
    }


def _explain(id_: str, reason: str) -> None:
    Container.objects.filter(pk=id_, started_at=None, kill_requested_at=None).update(reason=reason)


def _drained() -> list[str]:
    return list(Node.objects.listed().exclude(drained_at=None).values_list("name", flat=True))


def _numbers(uuids: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for host, number in Gpu.objects.filter(uuid__in=uuids).values_list("node__name", "index"):
        found.setdefault(host, []).append(number)
    return found
