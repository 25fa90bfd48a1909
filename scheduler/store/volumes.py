"""What Docker has had made here: volumes, and containers that mount them. Durable before Docker has its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Model

from scheduler.store.database import Here
from scheduler.store.journal import Journal
from scheduler.store.node_snapshot import Fields
from scheduler.store.write_behind import WriteBehind
from web.models import Command, Container, Volume
from web.services import claiming, mounting
from web.services.admission import free_name
from web.services.claiming import Claimed
from web.services.mounting import Mounting
from web.services.placement import accept_placement
from web.services.placement.placement_ticket import PlacementTicket


class Volumes:
    """All of it is about this host."""

    def __init__(self, behind: WriteBehind, here: Here) -> None:
        self._behind = behind
        self._here = here

    async def all(self) -> dict[str, dict[str, str]]:
        """Name → options, as Docker gave them."""
        if self._here.alone:
            return (await self._behind.snapshot()).volumes()
        found = await self._behind.ask(_all, self._here.node)
        await self._learn({name: {"options": options} for name, options in found.items()}, (Volume,))
        return found

    async def make(self, name: str, options: Mapping[str, str]) -> None:
        """Raises Problem."""
        await self._behind.write_by(mounting.make, self._here.node, name, options, self._behind.require_name)
        await self._learn({name: {"options": options}})

    async def remove(self, name: str) -> None:
        await self._behind.write(mounting.remove, self._here.node, name)
        await self._learn({name: None})

    async def _learn(self, volumes: Mapping[str, Fields | None], instead_of: Sequence[type[Model]] = ()) -> None:
        if journal := self._behind.journal:
            await journal.note(Journal.learn, {(Volume, name): fields for name, fields in volumes.items()}, instead_of)

    async def mount(self, volume: str, options: Mapping[str, str], asked: Mounting) -> Container:
        """The record of a container with its claims. Raises Problem, and then there is none."""
        ours = self._behind.require_name
        container = await self._behind.write_by(mounting.mount, self._here.node, volume, options, asked, ours)
        await self._promised(container)
        return container

    async def accept(self, volume: str, mount: str, ticket: PlacementTicket) -> Container:
        """The same for one that a placer has brought: its record is there. Raises Problem, and has changed nothing."""
        async with self._behind.nothing_written():
            container = await self._behind.write(accept_placement.accept, self._here.node, volume, mount, ticket)
            await self._promised(container)
        return container

    async def claim(self, claimed: Claimed) -> Container:
        """The same for a claim of a Kubernetes cluster's. Raises Problem, and then there is no record."""
        container = await self._behind.write_by(claiming.claim, self._here.node, claimed, self._behind.require_name)
        await self._promised(container)
        return container

    async def call_off(self, claim: str, reason: str) -> None:
        """What this claim (by the cluster's uid) was promised has come to nothing. What has ended stays as it is."""
        await self._behind.write(claiming.call_off, self._here.node, claim, reason)

    async def _promised(self, container: Container) -> None:
        await self._behind.promised(container, {claim.gpu.uuid: claim.quota for claim in container.claims.all()})

    async def mounted(self) -> list[Container]:
        """Containers that live, or that the engine has ended and not forgotten, of those that volumes brought here."""
        if self._here.alone:
            return [row for row in (await self._behind.snapshot()).containers() if row.mount]
        return await self._behind.ask(_mounted, self._here.node)

    async def require_image(self, container: str, image: str) -> None:
        """Of one whose image was not known before. Raises Problem if its owner may not have that."""
        await self._behind.ask(_require_image, container, image)

    async def known(self, container: str, about: Mapping[str, Any], *, begins: bool) -> None:
        """What Docker shows of one that was only guessed at before. `begins`: it has not run yet."""
        await self._behind.write(_known, container, about, begins)

    async def seen(
        self, container: str, namespace: str, pods: Sequence[Mapping[str, Any]], name: str, image: str
    ) -> None:
        """Whose a container of a Kubernetes cluster is, which was not known when it was made."""
        await self._behind.ask(claiming.seen, container, namespace, pods, name, image)


def _all(node: int) -> dict[str, dict[str, str]]:
    return dict(Volume.objects.filter(node=node).values_list("name", "options"))


def _mounted(node: int) -> list[Container]:
    return list(Container.objects.listed().filter(node=node).exclude(mount="").whole().order_by("created_at"))


def _require_image(id_: str, image: str) -> None:
    container = Container.objects.whole().get(pk=id_)  # without what a node may not read of people
    if not container.image and not _was_launched(container):
        mounting.require_image_of(container, image)


def _known(id_: str, about: Mapping[str, Any], begins: bool) -> None:
    container = Container.objects.whole().get(pk=id_)
    if _was_launched(container) or (container.image and not begins):
        return  # what was asked for is known better, and so is what it was begun with
    fields: dict[str, Any] = {"command": about["command"], "memory": about["memory"], "cpus": about["cpus"]}
    if not container.image:
        fields |= {"image": about["image"][:255], "name": free_name(about["name"], container.pk)}
    Container.objects.filter(pk=id_).update(**fields)


def _was_launched(container: Container) -> bool:
    return bool(container.run_of_id) or container.commands.filter(kind=Command.Kind.LAUNCH).exists()
