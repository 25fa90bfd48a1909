"""What Docker has had made here: volumes, and containers that mount them. Durable before Docker has its answer."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from django.db.models import Model

from scheduler.store.database import Here
from scheduler.store.journal import Journal
from scheduler.store.node_snapshot import Fields, Row, of_volumes
from scheduler.store.write_behind import WriteBehind
from web.models import Command, Container, Volume
from web.services import claiming, mounting
from web.services.admission import free_name
from web.services.claiming import Claimed
from web.services.mounting import Mounting
from web.services.placement import accept_placement
from web.services.placement.placement_ticket import PlacementTicket

Write = Callable[..., Awaitable[Container]]  # `WriteBehind.write` or `write_by`


class Volumes:
    """All of it is about this host."""

    def __init__(self, behind: WriteBehind, here: Here) -> None:
        self._behind = behind
        self._here = here

    async def all(self) -> dict[str, dict[str, str]]:
        """Name → options, as Docker gave them."""
        if self._here.alone:
            return (await self._behind.snapshot()).volumes()
        async with self._behind.nothing_written():
            found = await self.there()
            await self._learn(of_volumes(found), (Volume,))
        return found

    async def there(self) -> dict[str, dict[str, str]]:
        """The same by the database alone."""
        return await self._behind.ask(_all, self._here.node)

    async def make(self, name: str, options: Mapping[str, str]) -> None:
        """Raises Problem."""
        async with self._behind.nothing_written():
            await self._behind.write_by(mounting.make, self._here.node, name, options, self._behind.require_name)
            await self._learn(of_volumes({name: options}))

    async def remove(self, name: str) -> None:
        async with self._behind.nothing_written():
            await self._behind.write(mounting.remove, self._here.node, name)
            await self._learn({(Volume, name): None})

    async def _learn(self, volumes: Mapping[Row, Fields | None], instead_of: Sequence[type[Model]] = ()) -> None:
        if journal := self._behind.journal:
            await journal.note(Journal.learn, volumes, instead_of)

    async def mount(self, volume: str, options: Mapping[str, str], asked: Mounting) -> Container:
        """The record of a container with its claims. Raises Problem, and then there is none."""
        require_name = self._behind.require_name
        return await self._promised(self._behind.write_by, mounting.mount, volume, options, asked, require_name)

    async def accept(self, volume: str, mount: str, ticket: PlacementTicket) -> Container:
        """The same for one that a placer has brought: its record is there. Raises Problem, and has changed nothing."""
        return await self._promised(self._behind.write, accept_placement.accept, volume, mount, ticket)

    async def claim(self, claimed: Claimed) -> Container:
        """The same for a claim of a Kubernetes cluster's. Raises Problem, and then there is no record."""
        return await self._promised(self._behind.write_by, claiming.claim, claimed, self._behind.require_name)

    async def _promised(self, write: Write, query: Callable[..., Container], *arguments: Any) -> Container:
        async with self._behind.nothing_written():  # an earlier quota that is still to be written must not come after
            container = await write(query, self._here.node, *arguments)
            quota = {claim.gpu.uuid: claim.quota for claim in container.claims.all()}
            await self._behind.promised(container, quota)
        return container

    async def call_off(self, claim: str, reason: str) -> None:
        """What this claim (by the cluster's uid) was promised has come to nothing. What has ended stays as it is."""
        await self._behind.write(claiming.call_off, self._here.node, claim, reason)

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
