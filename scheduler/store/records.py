"""What the scheduler asks the database: what is to be done, and what an earlier scheduler knew."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from django.db import models
from django.db.models import Exists, Q

from scheduler.store.database import Database, Here
from scheduler.store.node_lease import held
from scheduler.store.node_snapshot import NodeSnapshot
from web.models import AllocationEvent, Claim, Command, Container, Gpu, Node
from web.models.records import secrets

T = TypeVar("T")

EARLIER = 10  # runs of a job, that say how long the next one takes


class Records:
    """All of it is about this host. After a start without the database, what a start asks is answered by `snapshot`."""

    def __init__(self, database: Database, here: Here, snapshot: Callable[[], Awaitable[NodeSnapshot]]) -> None:
        self._ask = database.ask
        self._here = here
        self._snapshot = snapshot

    async def _known(self, recall: Callable[[NodeSnapshot], T], query: Callable[[int], T]) -> T:
        return recall(await self._snapshot()) if self._here.alone else await self._ask(query, self._here.node)

    async def commands(self) -> list[Command]:
        """What is to be done, in order."""
        if self._here.alone:
            return []
        return await self._ask(_commands, self._here)

    async def living(self) -> list[Container]:
        """Containers that have not ended and were launched here, with their claims."""
        return await self._known(NodeSnapshot.containers, _living)

    async def living_by_engine(self) -> dict[str, list[str]]:
        """The names of those of them that an engine is known to have, by its name."""
        found: dict[str, list[str]] = {}
        for row in await self.living():
            if row.engine and row.engine_id:
                found.setdefault(row.engine, []).append(row.name)
        return found

    async def last_used(self) -> dict[str, dict[str, int]]:
        """What containers that have not ended used by the last event that said so: container → GPU → bytes."""
        if self._here.alone:
            return (await self._snapshot()).used()
        uuids = {pk: uuid for uuid, pk in self._here.gpus.items()}
        used_by: dict[str, dict[str, int]] = {}
        for container, gpu, used in await self._ask(_last_used, self._here.node):
            if gpu in uuids:
                used_by.setdefault(str(container), {})[uuids[gpu]] = used
        return used_by

    async def reported(self, kind: AllocationEvent.Kind) -> set[tuple[str, int | None]]:
        """Container and process of each such event of containers that have not ended.

        After a start without the database none: it may be reported again.
        """
        found = [] if self._here.alone else await self._ask(_reported, self._here.node, kind)
        return {(str(container), pid) for container, pid in found}

    async def moved(self) -> dict[str, tuple[float, float]]:
        """What moving memory to and from this host's has taken so far (`Speeds`)."""
        return await self._known(NodeSnapshot.moved, _moved)

    async def compute_asked(self) -> dict[str, str]:
        """What an admin chose for GPUs of this host: UUID → `Compute`; those without a choice are left out."""
        return await self._known(NodeSnapshot.compute_asked, _compute_asked)

    async def drained(self) -> dict[str, tuple[bool, str]]:
        """Of GPUs of this host that are or were out of service: UUID → whether it is now, and why it was last."""
        return await self._known(NodeSnapshot.drained, _drained)

    async def policy_asked(self) -> str:
        """The policy that an admin chose; empty: nobody has."""
        return await self._known(NodeSnapshot.policy_asked, _policy_asked)

    async def paused_by(self, ids: Sequence[str]) -> dict[str, str]:
        """Who has paused these containers: id → user name; without those that nobody has, but the appliance itself."""
        return await self._ask(_paused_by, ids) if ids else {}

    async def earlier_runs(self, ids: Sequence[str]) -> dict[str, list[float]]:
        """For each of these containers, how many seconds the same job ran before, its waits not counted; last first.

        The same job: of the same owner, with the same image, command and quota, and it ended well.
        """
        return await self._ask(_earlier_runs, ids)

    async def leftovers(self) -> list[Container]:
        """Ended containers that the engine still has, though they were to be removed when done."""
        return await self._ask(_leftovers, self._here.node)

    async def kept(self) -> list[str]:
        """Ended containers that this node's engine should still have."""
        return await self._ask(_kept, self._here.node)

    async def removed(self, ids: Sequence[str]) -> list[str]:
        """Those of these containers that count as removed."""
        return await self._ask(_removed, ids)


def _commands(here: Here) -> list[Command]:
    """This host's, while the name is ours. One that names no node is for the only one there is."""
    undone = Command.objects.filter(done_at=None)
    if not undone.exists():  # most often, and the whole question takes 14 times as long
        return []
    ours = Q(node__in=held(here)) | (Q(node=None) & ~Exists(Node.objects.exclude(pk=here.node)))
    people = [*secrets("container__owner"), *secrets("issued_by")]
    found = undone.filter(ours).select_related("container__owner", "issued_by")
    return list(found.order_by("number", "created_at").defer(*people))


def _living(node: int) -> list[Container]:
    living = Container.objects.live().filter(node=node).order_by("created_at")
    return list(living.whole())


def _last_used(node: int) -> list[tuple[Any, int, int]]:
    said = AllocationEvent.objects.filter(container=models.OuterRef("container"), gpu=models.OuterRef("gpu"))
    last = said.filter(used_after__isnull=False).order_by("-id").values("used_after")[:1]
    claims = Claim.objects.filter(container__node=node, container__in=Container.objects.live().order_by())
    known = claims.order_by().annotate(said=models.Subquery(last)).filter(said__isnull=False)
    return list(known.values_list("container", "gpu", "said"))


def _reported(node: int, kind: AllocationEvent.Kind) -> list[tuple[Any, int | None]]:
    living = Container.objects.live().filter(node=node).order_by()
    said = AllocationEvent.objects.filter(kind=kind, container__in=living).order_by()
    return list(said.values_list("container", "pid").distinct())


def _moved(node: int) -> dict[str, tuple[float, float]]:
    return {kind: (size, took) for kind, (size, took) in Node.objects.get(pk=node).moved.items()}


def _compute_asked(node: int) -> dict[str, str]:
    return dict(Gpu.objects.filter(node=node).exclude(compute_asked="").values_list("uuid", "compute_asked"))


def _drained(node: int) -> dict[str, tuple[bool, str]]:
    found = Gpu.objects.filter(node=node).exclude(drain_reason="")
    return {gpu.uuid: (gpu.drained, gpu.drain_reason) for gpu in found}


def _policy_asked(node: int) -> str:
    return Node.objects.values_list("policy_asked", flat=True).get(pk=node)


def _paused_by(ids: Sequence[str]) -> dict[str, str]:
    pauses = Command.objects.filter(
        kind=Command.Kind.PAUSE, container__pk__in=ids, outcome=Command.Outcome.DONE, issued_by__isnull=False
    )
    found = pauses.order_by("number", "created_at").values_list("container", "issued_by__username")
    return {str(container): name for container, name in found}


def _earlier_runs(ids: Sequence[str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for made in Container.objects.filter(pk__in=ids):
        same = Container.objects.filter(
            owner=made.owner_id, image=made.image, command=made.command, gpu_memory=made.gpu_memory, exit_code=0,
            kill_requested_at=None, started_at__isnull=False, finished_at__isnull=False,
        )  # fmt: skip
        runs = same.order_by("-finished_at").values_list("started_at", "finished_at", "suspended_seconds")[:EARLIER]
        found[str(made.pk)] = [
            max(0.0, (end - start).total_seconds() - waited) for start, end, waited in runs if start and end
        ]
    return found


def _leftovers(node: int) -> list[Container]:
    done = Container.objects.filter(node=node, remove_when_done=True, removed_at=None, finished_at__isnull=False)
    return list(done.exclude(engine_id=""))


def _kept(node: int) -> list[str]:
    """Those of another engine, from before this node changed its own, are not for this one to tell about."""
    ended = Container.objects.filter(
        node=node, engine=models.F("node__engine"), removed_at=None, finished_at__isnull=False
    )
    return [str(id_) for id_ in ended.exclude(engine_id="").order_by().values_list("pk", flat=True)]


def _removed(ids: Sequence[str]) -> list[str]:
    removed = Container.objects.filter(pk__in=ids, removed_at__isnull=False)
    return [str(id_) for id_ in removed.values_list("pk", flat=True)]
