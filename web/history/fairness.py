"""Who held how much, what for, and against what share: the figures of the fairness page.

From the samples, in one pass over hours or minutes. *Busy* is GPU utilisation while holding, weighted with what was
held: 8 GiB idle for an hour count as much against their owner as the computing of an hour on 8 GiB counts for them.
The *entitlement* is a person's VRAM allowance as a part of all allowances; an equal part where nobody has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from django.contrib.auth.models import Group, User
from django.db.models import F, FloatField, Q, Sum
from django.db.models.functions import Cast

from web.history.samples import samples_within
from web.models import Claim, Container, large
from web.people import allowances
from web.people.roles import Role
from web.sizes import whole

GIB_HOUR = 2**30 * 3600


@dataclass
class Share:
    """One person, or one group of people. Hours are GiB × hours."""

    name: str
    held: float = 0.0
    computing: float = 0.0  # held × utilisation, where utilisation is known
    known: float = 0.0  # held while utilisation was known
    waited: float = 0.0  # seconds
    part: float = 0.0  # of all that was held, 0 to 1
    entitled: float | None = None  # 0 to 1
    members: set[str] = field(default_factory=set)

    @property
    def over(self) -> bool:
        """More than they are entitled to, as the figures show it: in whole percents."""
        return self.entitled is not None and whole(100 * self.part) > whole(100 * self.entitled)

    @property
    def busy(self) -> float | None:
        """0 to 1; None if it was never known."""
        return self.computing / self.known if self.known else None


def people(start: datetime, end: datetime) -> list[Share]:
    """Everybody who held or waited in that time, the biggest holder first."""
    shares: dict[str, Share] = {}
    weight = Cast(F("used"), FloatField()) * F("span")
    rows = (
        samples_within(start, end)
        .filter(container__isnull=False)
        .values("container__owner__username")
        .annotate(
            held=Sum(weight),
            computing=Sum(weight * F("utilisation") / 100.0),
            known=Sum(weight, filter=Q(utilisation__isnull=False)),
            waited=Sum("suspended"),
        )
        .order_by()
    )
    for row in rows:
        name = row["container__owner__username"]
        shares[name] = Share(
            name,
            (row["held"] or 0) / GIB_HOUR,
            (row["computing"] or 0) / GIB_HOUR,
            (row["known"] or 0) / GIB_HOUR,
            row["waited"] or 0,
        )
    _entitle(shares)
    return sorted(_with_parts(shares), key=lambda share: -share.held)


def groups(shares: list[Share]) -> list[Share]:
    """The same by group (roles left out). Who is in two groups counts in both."""
    by_name = {share.name: share for share in shares}
    found: dict[str, Share] = {}
    members = Group.objects.exclude(name__in=[role.group for role in Role]).values_list("name", "user__username")
    for group, member in members:
        if member in by_name:
            share, of = found.setdefault(group, Share(group)), by_name[member]
            share.held += of.held
            share.computing += of.computing
            share.known += of.known
            share.waited += of.waited
            share.members.add(member)
            if of.entitled is not None:
                share.entitled = (share.entitled or 0) + of.entitled
    total = sum(share.held for share in shares)
    for share in found.values():
        share.part = share.held / total if total else 0
    return sorted(found.values(), key=lambda share: -share.held)


def idle_holders() -> list[tuple[Claim, datetime]]:
    """Who holds VRAM without computing, and since when, the biggest holder first. Who counts as idle, and after which
    time (GPUSHARE_IDLE_MINUTES), is for the scheduler to say: it looks each second."""
    held = Claim.objects.filter(container__in=Container.objects.idle().order_by(), used__gt=0).order_by("-used")
    claims = held.select_related("container__owner", "gpu").defer(*large("container__"))
    return [(claim, claim.container.idle_since) for claim in claims if claim.container.idle_since is not None]


def _entitle(shares: dict[str, Share]) -> None:
    users = {user.get_username(): user for user in User.objects.filter(username__in=shares)}
    allowed = {name: allowances.limits_of(user).gpu_memory for name, user in users.items()}
    given = {name: size for name, size in allowed.items() if size is not None}
    if not given:
        for share in shares.values():
            share.entitled = 1 / len(shares)
    elif len(given) == len(shares):
        total = sum(given.values())
        for name, share in shares.items():
            share.entitled = given[name] / total if total else 0.0
    # Some with a limit and some without: there is no share to speak of.


def _with_parts(shares: dict[str, Share]) -> list[Share]:
    total = sum(share.held for share in shares.values())
    for share in shares.values():
        share.part = share.held / total if total else 0.0
    return list(shares.values())
