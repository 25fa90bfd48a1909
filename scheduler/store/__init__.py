"""The only door from the scheduler to the database.

store.container(id_, paused_at=now)      what is so now, or has happened: remembered, and written behind (behind.py)
await store.records.living()             what is asked (records.py)
await store.promises.make(row, quota)    what must be there before anything follows from it (promises.py)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from scheduler.figures import Figures
from scheduler.gpus import Card
from scheduler.store.behind import WriteBehind
from scheduler.store.database import Database, Here
from scheduler.store.promises import Promises
from scheduler.store.records import Records
from web.models import AllocationEvent, Claim, Command, Container, Gpu, Node, UsageSample

__all__ = ["Store"]

BIGGEST = 2**63 - 1


class Store(WriteBehind):
    """`node` is the name of this host. What happens is stamped when it is told, not when it is written."""

    def __init__(self, node: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Database())
        self._name = node
        self._clock = clock
        self._here = Here()
        self.figures = Figures()
        self.records = Records(self.database, self._here)
        self.promises = Promises(self, self._here)

    async def open(self, cards: Mapping[str, Card], contexts: Mapping[str, int], **node: Any) -> dict[str, int]:
        """Makes this host and its cards known. `contexts`: GPU → bytes that a context takes, as far as is measured.

        Returns the same of all that was ever measured.
        """
        self._here.node, gpus = await self.ask(_open, self._name, list(cards.values()), contexts, node)
        self._here.gpus.update({gpu.uuid: gpu.pk for gpu in gpus})
        return {gpu.uuid: gpu.context for gpu in gpus if gpu.context}

    # ---- what is so now ----

    def node(self, **fields: Any) -> None:
        self.put(Node, self._here.node, fields)

    def gpu(self, uuid: str, **fields: Any) -> None:
        self.put(Gpu, self._here.gpus[uuid], fields)

    def container(self, id_: str, **fields: Any) -> None:
        self.put(Container, id_, fields)

    def claim(self, container: str, gpu: str, **fields: Any) -> None:
        self.put(Claim, (container, self._here.gpus[gpu]), fields)

    def command(self, id_: Any, **fields: Any) -> None:
        self.put(Command, id_, fields)
        if "done_at" in fields:
            self.hurry()

    def taken(self, command: Any) -> None:
        """When that was is written with whatever is written next: what it sets off is not to wait for it."""
        self.with_the_next((Command, command), taken_at=timezone.now())

    def forget(self, container: str, gpus: list[str]) -> None:
        """It has ended: nothing about it is going to change any more."""
        self.forget_row((Container, container))
        for gpu in gpus:
            self.forget_row((Claim, (container, self._here.gpus[gpu])))

    # ---- what happened: broker.Journal ----

    def event(
        self, kind: str, container: str, *, gpu: str = "", pid: int | None = None, size: int = 0,
        used_after: int | None = None, waited: float = 0.0, policy: str = "", detail: str = "",
        at: datetime | None = None,
    ) -> None:  # fmt: skip
        """`at`: when it happened, if that is not now."""
        self.figures.event(kind, waited)
        self.happened(
            AllocationEvent(
                at=at or timezone.now(),
                kind=kind,
                container_id=container,
                gpu_id=self._here.gpus.get(gpu),
                pid=pid,
                bytes=min(size, BIGGEST),
                used_after=used_after,
                waited=waited,
                policy=policy,
                detail=detail[:500],
            )
        )

    def sample(self, container: str | None, gpu: str, at: datetime, **fields: Any) -> None:
        self.sampled(UsageSample(at=at, gpu_id=self._here.gpus[gpu], container_id=container, **fields))

    def suspended(self, container: str, since: float | None, before: float) -> None:
        at = None if since is None else self.wall(since)
        self.container(container, suspended_since=at, suspended_seconds=before)

    def wall(self, monotonic: float) -> datetime:
        return timezone.now() - timedelta(seconds=self._clock() - monotonic)

    def monotonic(self, at: datetime) -> float:
        return self._clock() - (timezone.now() - at).total_seconds()


def _open(
    name: str, cards: list[Card], contexts: Mapping[str, int], fields: Mapping[str, Any]
) -> tuple[int, list[Gpu]]:
    with transaction.atomic():
        node, _ = Node.objects.update_or_create(name=name, defaults=fields)
        Gpu.objects.filter(node=node).update(present=False)
        known = []
        for card in cards:
            gpu, _ = Gpu.objects.update_or_create(
                uuid=card.uuid,
                defaults={
                    "node": node,
                    "index": card.index,
                    "name": card.name,
                    "present": True,
                    "simulated": card.simulated,
                    "total": card.total,
                    "capacity": card.capacity(0),
                    "most": card.capacity(0),
                    **({"context": contexts[card.uuid]} if card.uuid in contexts else {}),
                },
            )
            known.append(gpu)
        return node.pk, known
