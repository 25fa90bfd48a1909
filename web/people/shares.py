"""What each person and group is due of the cards: shares, boosts and forgiven usage, as admins give them.

All people are due the same unless an admin says otherwise, and a group counts once it has shares. The scheduler reads
`current`; whoever changes anything of it wakes the scheduler by the signals in web/services/issuing.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import Group, User
from django.db import transaction
from django.utils import timezone

from web import audit
from web.errors import forbidden, invalid
from web.models import GroupShares, PersonShares
from web.people.accounts import administered
from web.people.groups import require_no_role, require_there
from web.people.roles import Deed, admins, require
from web.spec.people import GroupSharesSpec, SharesSpec

GIVEN = ("shares", "share_group", "boost", "boost_until")


@dataclass(frozen=True, slots=True)
class Current:
    """What is in force: `people` has the shares, boosts included, of those who have not the usual; `group_of` the one
    group that counts for each member; `groups` the shares of the groups that count; `forgiven` how often usage was."""

    people: Mapping[str, float] = field(default_factory=dict)
    group_of: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)
    forgiven: Mapping[str, int] = field(default_factory=dict)


def current(now: datetime) -> Current:
    rows = list(PersonShares.objects.select_related("user", "share_group"))
    chosen = {row.user.get_username(): row.share_group.name for row in rows if row.share_group}
    members = GroupShares.objects.exclude(group__user=None).values_list("group__user__username", "group__name")
    return Current(
        people={row.user.get_username(): float(in_force(row, now)) for row in rows if in_force(row, now) != 1},
        group_of=_one_each(members.order_by("group__name"), chosen),
        groups={name: float(shares) for name, shares in GroupShares.objects.values_list("group__name", "shares")},
        forgiven={row.user.get_username(): row.forgiven for row in rows if row.forgiven},
    )


def _one_each(members: Iterable[tuple[str, str]], chosen: Mapping[str, str]) -> dict[str, str]:
    """Of several groups with shares the chosen one counts; if none of them is, the first."""
    found: dict[str, str] = {}
    for person, group in members:
        if person not in found or chosen.get(person) == group:
            found[person] = group
    return found


def in_force(row: PersonShares, now: datetime) -> int:
    """With the boost, while it lasts."""
    return row.shares * (row.boost if row.boost_until is not None and row.boost_until > now else 1)


def of(user: User) -> PersonShares:
    """What is chosen for them, as an unsaved row has it: nothing was, or a boost is over."""
    row = PersonShares.objects.select_related("share_group").filter(user=user).first() or PersonShares(user=user)
    if row.boost_until is not None and row.boost_until <= timezone.now():
        row.boost, row.boost_until = 1, None
    return row


def as_dict(row: PersonShares) -> dict[str, Any]:
    return {
        "shares": row.shares,
        "share_group": row.share_group.name if row.share_group else None,
        "boost": row.boost,
        "boost_until": row.boost_until and row.boost_until.isoformat(),
    }


def groups_with_shares(user: User) -> list[str]:
    return list(user.groups.exclude(fair=None).order_by("name").values_list("name", flat=True))


def change(actor: User, user: User, asked: Any) -> PersonShares:
    """Other shares, another group that counts, a boost until a date, or usage set to zero (`SharesSpec`)."""
    require(actor, Deed.MANAGE)
    spec = SharesSpec.parse(asked)
    forgive = spec.pop("forgive", False)
    if not spec and not forgive:
        raise invalid(f"Nothing to change: give one or more of {', '.join(SharesSpec().fields)}.")
    name, now = user.get_username(), timezone.now()
    with transaction.atomic():
        row, _ = PersonShares.objects.select_for_update(of=("self",)).get_or_create(user=user)
        before, had = as_dict(row), in_force(row, now)
        if "share_group" in spec:
            spec["share_group"] = _group_of_theirs(user, spec["share_group"])
        for field_name, value in spec.items():
            setattr(row, field_name, value)
        if row.boost == 1:
            row.boost_until = None
        elif spec.keys() & {"boost", "boost_until"} and (row.boost_until is None or row.boost_until <= now):
            raise invalid("A boost ends: give a time in the future.", "boost_until")
        raised = row.boost > 1 and spec.keys() & {"boost", "boost_until"}
        if forgive or raised or in_force(row, now) > had:
            _require_another(actor, user)
        row.forgiven += forgive
        row.save(update_fields=[*GIVEN, "forgiven"])
        after = as_dict(row)
        if changed := [each for each in GIVEN if before[each] != after[each]]:
            audit.record(actor.get_username(), "shares-changed", name, of="person",
                         before={each: before[each] for each in changed},
                         after={each: after[each] for each in changed})  # fmt: skip
        if forgive:
            audit.record(actor.get_username(), "usage-forgiven", name)
    return row


def change_group(actor: User, group: Group, asked: Any) -> int | None:
    """Its shares (`GroupSharesSpec`); None: it does not count. Returns what is in force."""
    require(actor, Deed.MANAGE)
    shares: int | None = GroupSharesSpec.parse(asked)["shares"]
    require_no_role(group)
    with administered():
        require_there(group)
        before = of_group(group)
        if shares is None:
            GroupShares.objects.filter(group=group).delete()
        else:
            GroupShares.objects.update_or_create(group=group, defaults={"shares": shares})
        if before != shares:
            audit.record(actor.get_username(), "shares-changed", group.name, of="group",
                         before={"shares": before}, after={"shares": shares})  # fmt: skip
    return shares


def of_group(group: Group) -> int | None:
    return GroupShares.objects.filter(group=group).values_list("shares", flat=True).first()


def _group_of_theirs(user: User, name: str | None) -> Group | None:
    if name is None:
        return None
    if (group := Group.objects.filter(name=name, user=user).exclude(fair=None).first()) is None:
        raise invalid(f'{user.get_username()} is in no group "{name}" that has shares.', "share_group")
    return group


def _require_another(actor: User, user: User) -> None:
    """Nobody raises their own share, but for the only admin there is."""
    if actor.pk == user.pk and admins().exclude(pk=actor.pk).exists():
        raise forbidden("Another admin has to do this: admins may not raise their own share or reset their own usage.")
