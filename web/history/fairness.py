"""Who used how much of the cards, against what was due to them: the figures of the fairness page and of `fairness/`.

*Used* and *fair share* are of the ledger that the queue goes by (docs/deciding.md), to the hour: GiB × hours held while
somebody waited for that card, and what of it was due. GPU hours, waits and what was held in all are of the whole time.
*Busy* is GPU utilisation while holding, weighted with what was held: 8 GiB idle for an hour count as much against their
owner as the computing of an hour on 8 GiB counts for them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import ceil
from typing import Any

from django.contrib.auth.models import Group
from django.db.models import Count, F, FloatField, Q, QuerySet, Sum
from django.db.models.functions import Cast
from django.utils import timezone

from web.history.samples import samples_within
from web.history.spans import STANDING, Waited, spans
from web.models import Claim, Container, Gpu, Node, Usage, UsageHour, large
from web.people import shares
from web.people.roles import Role
from web.sizes import format_size

GIB_HOUR = 2**30 * 3600
HOUR = 3600
ABOVE = 1.1  # of the fair share: less is noise
LINES = 10  # of the graph: those who used most
POINTS = 32  # of each line, about


@dataclass
class Figures:
    """One person, or one group of people. Memory is GiB × hours, computing hours of a GPU, waits seconds."""

    name: str
    had: float = 0.0  # while somebody waited there
    due: float = 0.0
    gpu_had: float | None = None  # that they computed; None: not known
    gpu_due: float | None = None  # by turns; None: there were none
    held: float = 0.0  # in all
    computing: float = 0.0  # held × utilisation, where utilisation is known
    known: float = 0.0  # held while utilisation was known
    waits: list[float] = field(default_factory=list)
    containers: int = 0  # that lived in that time
    shares: float | None = 1.0  # boosts included; None: a group that does not count
    group: str = ""  # of a person: the one that counts for them
    members: set[str] = field(default_factory=set)
    holds: int = 0  # bytes, now
    share: int | None = None  # bytes that are due of the cards where they are and somebody waits now; None: nobody does
    holds_there: int = 0  # bytes of those cards
    standing: float | None = 1.0  # had of due, decayed: what the queue goes by now; None: of a group

    @property
    def ratio(self) -> float | None:
        """Used of what was due; None if nobody waited where they held or waited."""
        return self.had / self.due if self.due > 0 else None

    @property
    def above(self) -> bool:
        """By the figure that is shown."""
        return self.ratio is not None and round(self.ratio, 2) >= ABOVE

    @property
    def busy(self) -> float | None:
        """0 to 1; None if it was never known."""
        return self.computing / self.known if self.known else None

    @property
    def wait_mean(self) -> float | None:
        return mean(self.waits)

    @property
    def wait_p95(self) -> float | None:
        return p95(self.waits)

    @property
    def why(self) -> str:
        """Why somebody is above, as far as that can be seen now."""
        if not self.above:
            return ""
        if self.share is None:
            now = format_size(self.holds) if self.holds else "nothing"
            return f"Held more than the fair share while others waited; holds {now} now."
        than = "more than" if self.holds_there > self.share else "within"
        holds = format_size(self.holds_there)
        return f"Holds {holds}, {than} the fair share of {format_size(self.share)} while others wait."

    def add(self, other: "Figures") -> None:
        """A member's figures to those of the group."""
        self.members.add(other.name)
        self.gpu_had = _sum(self.gpu_had, other.gpu_had)
        self.gpu_due = _sum(self.gpu_due, other.gpu_due)
        self.share = None if self.share is other.share is None else (self.share or 0) + (other.share or 0)
        self.waits = self.waits + other.waits
        for name in ("had", "due", "held", "computing", "known", "containers", "holds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def mean(waits: list[float]) -> float | None:
    return sum(waits) / len(waits) if waits else None


def p95(waits: list[float]) -> float | None:
    """The wait that 95 % of them did not exceed."""
    return sorted(waits)[ceil(0.95 * len(waits)) - 1] if waits else None


def people(start: datetime, end: datetime) -> list[Figures]:
    """Everybody who held, waited or had a container in that time; who used most of what others waited for first."""
    found: dict[str, Figures] = {}

    def of(name: str) -> Figures:
        return found.setdefault(name, Figures(name))

    for person, had, due in used(start, end):
        of(person).had, of(person).due = had, due
    _add_samples(of, start, end)
    _add_containers(of, start, end)
    given = shares.current(timezone.now())
    for name, figures in found.items():
        figures.shares, figures.group = given.people.get(name, 1.0), given.group_of.get(name, "")
    _add_now(found)
    return sorted(found.values(), key=lambda each: (-each.had, -each.held, each.name))


def groups(found: Iterable[Figures]) -> list[Figures]:
    """The same by group (roles left out). Who is in several with shares counts in the one that counts for them."""
    given = shares.current(timezone.now())
    by_name = {each.name: each for each in found}
    sums: dict[str, Figures] = {}
    members = Group.objects.exclude(name__in=[role.group for role in Role]).values_list("name", "user__username")
    for group, member in members:
        counts = group in given.groups
        if member in by_name and (not counts or given.group_of.get(member) == group):
            its = Figures(group, shares=given.groups.get(group), standing=None)
            sums.setdefault(group, its).add(by_name[member])
    return sorted(sums.values(), key=lambda each: (-each.had, -each.held, each.name))


def used(start: datetime, end: datetime, **of: Any) -> list[tuple[str, float, float]]:
    """(person, had, due) of the ledger, GiB × hours, to the hour."""
    return list(_hours(start, end, **of).values_list("person").annotate(Sum("had"), Sum("due")).order_by())


def latest(**of: Any) -> QuerySet[Usage]:
    """What schedulers say of people now; last what the one says that gave the last sign of life."""
    return Usage.objects.filter(**of).order_by(F("gpu__node__seen_at").asc(nulls_first=True), "at")


def curve(start: datetime, end: datetime) -> dict[str, Any]:
    """Used of the fair share over time, of those who used most: {"times", "people": [{"name", "values"}]}.

    None where nobody waited for what they held or waited for.
    """
    first, last = int(start.timestamp()) // HOUR, int(end.timestamp()) // HOUR
    step = max(1, round((last - first) / POINTS))
    sums: dict[tuple[str, int], list[float]] = {}
    most: dict[str, float] = {}
    for person, hour, had, due in _hours(start, end).values_list("person", "hour", "had", "due"):
        point = sums.setdefault((person, (hour - first) // step), [0.0, 0.0])
        point[0] += had
        point[1] += due
        most[person] = most.get(person, 0.0) + had
    shown = sorted(most, key=lambda person: (-most[person], person))[:LINES]
    places = range((last - first) // step + 1)
    return {
        "times": [(first + place * step) * HOUR for place in places],
        "people": [
            {"name": person, "values": [_ratio(sums.get((person, place))) for place in places]} for person in shown
        ],
    }


def idle_holders() -> list[tuple[Claim, datetime]]:
    """Who holds VRAM without computing, and since when, the biggest holder first. Who counts as idle, and after which
    time (GPUSHARE_IDLE_MINUTES), is for the scheduler to say: it looks each second."""
    held = Claim.objects.filter(container__in=Container.objects.idle().order_by(), used__gt=0).order_by("-used")
    claims = held.select_related("container__owner", "gpu").defer(*large("container__"))
    return [(claim, claim.container.idle_since) for claim in claims if claim.container.idle_since is not None]


def _hours(start: datetime, end: datetime, **of: Any) -> Any:
    first, last = (int(each.astimezone(UTC).timestamp()) // HOUR for each in (start, end))
    return UsageHour.objects.filter(hour__gte=first, hour__lte=last, **of)


def _add_samples(of: Any, start: datetime, end: datetime) -> None:
    weight = Cast(F("used"), FloatField()) * F("span")
    rows = (
        samples_within(start, end)
        .filter(container__isnull=False)
        .values("container__owner__username")
        .annotate(
            held=Sum(weight),
            computing=Sum(weight * F("utilisation") / 100.0),
            known=Sum(weight, filter=Q(utilisation__isnull=False)),
            seconds=Sum("had"),
            turns=Sum("due"),
        )
        .order_by()
    )
    for row in rows:
        figures = of(row["container__owner__username"])
        figures.held = (row["held"] or 0) / GIB_HOUR
        figures.computing = (row["computing"] or 0) / GIB_HOUR
        figures.known = (row["known"] or 0) / GIB_HOUR
        figures.gpu_had = None if row["seconds"] is None else row["seconds"] / HOUR
        figures.gpu_due = None if row["turns"] is None else row["turns"] / HOUR


def _add_containers(of: Any, start: datetime, end: datetime) -> None:
    lived = Container.objects.filter(Q(finished_at=None) | Q(finished_at__gte=start), created_at__lt=end).order_by()
    for name, count in lived.values_list("owner__username").annotate(Count("pk")):
        of(name).containers = count
    owners = dict(lived.values_list("pk", "owner__username"))
    for container, parts in spans(Q(), start, end, STANDING):
        waits = [(part.end - part.start).total_seconds() for part in parts if isinstance(part, Waited)]
        if waits and container in owners:
            of(owners[container]).waits += waits


def _add_now(found: dict[str, Figures]) -> None:
    alive = set(Gpu.objects.filter(node__in=Node.objects.alive()).values_list("pk", flat=True))
    waited = set[tuple[str, int]]()
    for row in latest():
        if figures := found.get(row.person):
            figures.standing = row.ratio
            if row.share is not None and row.gpu_id in alive:
                figures.share = (figures.share or 0) + row.share
                waited.add((row.person, row.gpu_id))
    live = Claim.objects.filter(container__finished_at=None).order_by()
    for name, gpu, held in live.values_list("container__owner__username", "gpu").annotate(Sum("granted")):
        if figures := found.get(name):
            figures.holds += held or 0
            figures.holds_there += (held or 0) * ((name, gpu) in waited)


def _ratio(point: list[float] | None) -> float | None:
    return round(point[0] / point[1], 3) if point and point[1] > 0 else None


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other
