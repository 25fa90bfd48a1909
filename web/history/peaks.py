"""Right-sizing: what runs of an image and a command really took, and the quota that would have been enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import Count, Exists, Max, OuterRef, Q

from web.models import AllocationEvent, Container
from web.people.roles import Deed, rights_of

if TYPE_CHECKING:
    from django.contrib.auth.models import User

_STEP = 64 * 2**20
_MARGIN = 0.05  # fragmentation and the noise between runs


@dataclass(frozen=True, slots=True)
class Peak:
    """`peak` is the most that any run held on one GPU, contexts included. In `rejected_runs` of the `runs` a request
    was rejected: those wanted more than they got, and the suggestion is then a lower bound. `command` is None where
    runs of other people are counted together, by image: what they ran is not everybody's to read."""

    image: str
    command: list[str] | None
    runs: int
    rejected_runs: int
    peak: int
    suggestion: int


def peaks(reader: User, image: str = "", command: list[str] | None = None) -> list[Peak]:
    """The most used first."""
    runs = Container.objects.filter(claims__peak__gt=0)
    if image:
        runs = runs.filter(image=image)
    if command is not None:
        runs = runs.filter(command=command)
    rejections = AllocationEvent.objects.filter(container=OuterRef("pk"), kind=AllocationEvent.Kind.REJECTED)
    rejected = Count("pk", filter=Q(rejected=True), distinct=True)
    rows = (
        runs.order_by()
        .annotate(rejected=Exists(rejections))
        .values("image", "command")
        .annotate(runs=Count("pk", distinct=True), rejected_runs=rejected, peak=Max("claims__peak"))
        .order_by("-runs", "image")
    )
    found = [Peak(**row, suggestion=suggest(row["peak"])) for row in rows]
    if command is not None or rights_of(reader).may(Deed.STEER_ALL):
        return found
    own = {(image, tuple(words)) for image, words in runs.filter(owner=reader).values_list("image", "command")}
    return list(_together(found, own))


def _together(found: list[Peak], own: set[tuple[str, tuple[str, ...]]]) -> Iterator[Peak]:
    """With one for each image instead of those that are not among one's `own` images and commands."""
    others: dict[str, list[Peak]] = {}
    for each in found:
        if (each.image, tuple(each.command or ())) in own:
            yield each
        else:
            others.setdefault(each.image, []).append(each)
    for image, many in others.items():
        peak = max(each.peak for each in many)
        runs, rejected = sum(each.runs for each in many), sum(each.rejected_runs for each in many)
        yield Peak(image, None, runs, rejected, peak, suggest(peak))


def suggest(peak: int) -> int:
    """A quota for this peak: 5 % more, rounded up to 64 MiB."""
    return -(-int(peak * (1 + _MARGIN)) // _STEP) * _STEP
