"""Whether those who would have to give way to a reservation fit into their host's memory at its begin, as far as can be
known when it is made. The scheduler looks again from 15 minutes before (scheduler/monitors/reservations.py)."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from math import inf
from typing import NamedTuple
from uuid import UUID

from web.models import Claim, Container, Gpu
from web.sizes import format_size


class Holder(NamedTuple):
    """One without a right: bytes on the GPU, all that would go to host memory with it (inf: it stays), and its end."""

    here: int
    whole: float
    ends: datetime | None


def why_not(
    card: Gpu, size: int, begins: Iterable[datetime], people: Collection[str], stays: Iterable[Claim]
) -> str:  # fmt: skip
    """A sentence if, at one of these times, so many bytes cannot be made free for these people; empty if they can, or
    that is not known.

    `stays`: the claims on this GPU of those that cannot be moved.
    """
    budget = card.node.figures.get("swap_memory")
    if not isinstance(budget, int):
        return ""
    holders = sorted(_holders(card, people, {claim.container_id for claim in stays}), key=lambda each: each.whole)
    out = [(each.swapped, each.ends_by) for each in Container.objects.live().filter(node=card.node, swapped__gt=0)]
    for at in begins:
        here = [each for each in holders if each.ends is None or each.ends > at]
        room = budget - sum(swapped for swapped, ends in out if ends is None or ends > at)
        lacks = min(size - card.most + sum(each.here for each in here), sum(h.here for h in here if h.whole < inf))
        if lacks > 0 and max(_freed(here, room), _freed(here[::-1], room)) < lacks:
            return (
                f"At {at:%Y-%m-%d %H:%M} UTC, {format_size(lacks)} of GPU {card.index} of {card.node.name} would have "
                f"to move to host memory, which has {format_size(max(0, room))} for that. Reserve less, or so that "
                "containers in its way end."
            )
    return ""


def _holders(card: Gpu, people: Collection[str], stays: Collection[UUID]) -> Iterator[Holder]:
    there = Claim.objects.filter(gpu=card, container__finished_at=None, container__swapped_at=None)
    for claim in there.select_related("container__owner").prefetch_related("container__claims"):
        container = claim.container
        here = claim.quota if container.guaranteed else max(claim.granted, claim.used)
        if here and container.owner.get_username() not in people:
            whole = sum(max(each.granted, each.used) for each in container.claims.all())
            yield Holder(here, inf if container.pk in stays else whole, container.ends_by)


def _freed(holders: Iterable[Holder], room: float) -> int:
    freed = 0
    for each in holders:
        if each.whole <= room:
            freed, room = freed + each.here, room - each.whole
    return freed
