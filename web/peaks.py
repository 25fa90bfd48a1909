"""Right-sizing: what runs of an image and a command really took, and the quota that would have been enough."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Exists, Max, OuterRef, Q

from web.models import AllocationEvent, Container

_STEP = 64 * 2**20
_MARGIN = 0.05  # fragmentation and the noise between runs


@dataclass(frozen=True, slots=True)
class Peak:
    """`peak` is the most that any run held on one GPU, contexts included. In `rejected_runs` of the `runs` a request
    was rejected: those wanted more than they got, and the suggestion is then a lower bound."""

    image: str
    command: list[str]
    runs: int
    rejected_runs: int
    peak: int
    suggestion: int


def peaks(image: str = "", command: list[str] | None = None) -> list[Peak]:
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
    return [Peak(**row, suggestion=suggest(row["peak"])) for row in rows]


def suggest(peak: int) -> int:
    """A quota for this peak: 5 % more, rounded up to 64 MiB."""
    return -(-int(peak * (1 + _MARGIN)) // _STEP) * _STEP
