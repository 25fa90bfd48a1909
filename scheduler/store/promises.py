"""What must be in the database before anything follows from it: the claims of containers on GPUs."""

from collections.abc import Mapping, Sequence

from django.db import Error, transaction

from scheduler.store.database import Here
from scheduler.store.node_snapshot import Rows
from scheduler.store.write_behind import WriteBehind
from web.models import Claim, Container
from web.models.states import NOTHING_HELD
from web.people.allowances import require_promise


class Promises:
    def __init__(self, behind: WriteBehind, here: Here) -> None:
        self._behind = behind
        self._here = here

    async def make(
        self, container: Container, quota: Mapping[str, int], *, within_allowance: bool, admitted: bool = False
    ) -> None:
        """Makes or changes the claims of a container: bytes by GPU.

        A claim may be ahead of the core's answer; `gpu_memory` of the row is the quota in force, which a take-over
        restores. `admitted`: the core has accepted these quotas, so they are written into a row that names none.
        Raises Problem if `within_allowance` is to be looked at and the owner may not have that; and DatabaseError, with
        which the database may have them all the same.
        """
        gpus = self._here.gpus
        sizes = {gpus[gpu]: size for gpu, size in quota.items()}
        if admitted and container.gpu_memory is None:
            (container.gpu_memory,) = set(sizes.values())  # a launch has the same on each of its GPUs
        async with self._behind.nothing_written():  # an earlier quota that is still to be written must not come after
            try:
                await self._behind.write(_promise, container, self._here.node, sizes, within_allowance, admitted)
            except Error:
                for gpu in sizes:
                    self._behind.may_be_written((Claim, (str(container.pk), gpu)), "quota")
                raise
            await self._behind.promised(container, quota)

    async def move(self, container: str, old: str, new: str, card_move: Mapping[str, str]) -> None:
        """The claim of a container that is out is on another GPU from now on, with all that it says.

        `card_move`: where the driver has it, and where it is to be restored; empty: on its card. Raises DatabaseError,
        with which the database may have it all the same: then it is tried again.
        """
        before, after = self._here.gpus[old], self._here.gpus[new]
        await self._behind.flush()
        async with self._behind.nothing_written():
            await self._behind.write(_move, container, before, after, dict(card_move))
            row: Rows = {(Container, container): {"card_move": dict(card_move)}}
            await self._behind.renamed((Claim, (container, before)), (Claim, (container, after)), row)

    async def made(self, container: Container) -> dict[str, int]:
        """What a container was promised before: bytes by GPU."""
        found = await self._behind.ask(_promised, container)
        return {gpu: found[pk] for gpu, pk in self._here.gpus.items() if pk in found}

    async def nothing_held(self, *, except_by: Sequence[str]) -> None:
        """Containers other than these have ended; a scheduler that was killed may not have written what came back."""
        await self._behind.write(_nothing_held, self._here.node, except_by)


def _promise(container: Container, node: int, quota: Mapping[int, int], within_allowance: bool, admitted: bool) -> None:
    """In one transaction, or two promises could pass an allowance that has room for one."""
    claims = [Claim(container=container, gpu_id=gpu, quota=size) for gpu, size in quota.items()]
    with transaction.atomic():
        if within_allowance:
            require_promise(container, sum(quota.values()))
        fields = {"node": node} | ({"gpu_memory": container.gpu_memory} if admitted else {})
        Container.objects.filter(pk=container.pk).update(**fields)
        Claim.objects.bulk_create(
            claims, update_conflicts=True, unique_fields=["container", "gpu"], update_fields=["quota"]
        )


def _move(container: str, old: int, new: int, card_move: dict[str, str]) -> None:
    with transaction.atomic():
        Claim.objects.filter(container__pk=container, gpu=old).update(gpu=new)
        Container.objects.filter(pk=container).update(card_move=card_move)


def _promised(container: Container) -> dict[int, int]:
    return dict(Claim.objects.filter(container=container).order_by().values_list("gpu_id", "quota"))


def _nothing_held(node: int, except_by: Sequence[str]) -> None:
    stale = Claim.objects.filter(container__node=node).exclude(**NOTHING_HELD)
    stale.exclude(container__pk__in=except_by).update(**NOTHING_HELD)
