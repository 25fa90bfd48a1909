"""What a person may use, and whether a launch or a change stays inside it."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import Q, Sum

from web.errors import Problem
from web.models import Allowance, Container
from web.models.functions import ask
from web.models.records import USUAL_WEIGHT
from web.people.roles import groups_of, is_role
from web.sizes import format_size
from web.spec import quotas


@dataclass(frozen=True, slots=True)
class Allowed:
    """An `Allowance` in effect. None sets no limit."""

    gpu_memory: int | None = None
    containers: int | None = None
    gib_hours: float | None = None
    priority_lowest: int | None = None
    priority_highest: int | None = None
    compute_weight: int | None = None  # the most, of each container
    compute_limit: int | None = None
    reservations: int | None = None
    reserved_gib_hours: float | None = None
    reserved_days: int | None = None
    images: tuple[str, ...] | None = None
    gpus: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit in force: its value (None: there is none), and the allowances that say so."""

    value: Any
    rows: tuple[Allowance, ...] = ()
    others: int = 0  # how many groups' allowances were passed over, as less generous

    @property
    def kind(self) -> str:
        """own, group, role, or empty where nobody says anything."""
        if not self.rows:
            return ""
        if self.rows[0].user_id is not None:
            return "own"
        return "group" if any(not is_role(row.group) for row in self.rows) else "role"

    @property
    def groups(self) -> list[str]:
        """The names of those that say so; a role is the group of that name."""
        return [row.group.name for row in self.rows if row.group is not None]

    @property
    def explanation(self) -> str:
        if not self.rows:
            return "No limit is set."
        if self.kind == "own":
            return "Set for this person."
        names = " and ".join(f"the {'role' if is_role(row.group) else 'group'} {row.group}" for row in self.rows)
        if self.value is None:
            return f"No limit, as {names} {'set' if len(self.rows) > 1 else 'sets'} none."
        return f"From {names}{', the most generous' if self.others else ''}."


def limits_of(user: User) -> Allowed:
    """The user's own allowance; where that is silent, the most generous of the groups', that of their role included."""
    return Allowed(**{name: limit.value for name, limit in explained(user).items()})


def explained(user: User) -> dict[str, Limit]:
    """The same with where each comes from, by the names of `Allowed`."""
    found = Allowance.objects.filter(Q(user=user) | Q(group__in=groups_of(user)))
    rows = list(found.select_related("group").order_by("pk"))
    own = [row for row in rows if row.user_id is not None]
    groups = [row for row in rows if row.user_id is None]
    return {field.name: _effective(field.name, own, groups) for field in fields(Allowed)}


def _effective(name: str, own: list[Allowance], groups: list[Allowance]) -> Limit:
    for row in own:
        if (value := getattr(row, name)) is not None:
            return Limit(tuple(value) if isinstance(value, list) else value, (row,))
    values = [getattr(row, name) for row in groups]
    if not values:
        return Limit(None)
    if None in values:  # a group that sets no limit is the most generous
        if not any(value is not None for value in values):
            return Limit(None)
        most = None
    elif isinstance(values[0], list):
        return Limit(tuple(dict.fromkeys(item for value in values for item in value)), tuple(groups))
    else:
        most = min(values) if name == "priority_lowest" else max(values)
    rows = tuple(row for row, value in zip(groups, values, strict=True) if value == most)
    return Limit(most, rows, len(groups) - len(rows))


def hold(user: User) -> None:
    """Until the transaction ends, nothing else is given under this person's allowance.

    Two launches, or changes of a quota, could pass one that has room for one. no_key: rows that only refer to the
    person are not held up.
    """
    if settings.GPUSHARE_AUDIT_KEY:
        ask("SELECT gpushare_hold(%s)", user.pk)
    else:
        get_user_model().objects.select_for_update(no_key=True).values_list("pk").get(pk=user.pk)


def quota_held(user: User, besides: Container | None = None) -> int:
    """Bytes of quota that the user's live containers, on whatever node, hold or have asked for."""
    held = [row[1:] for row in _held(user) if besides is None or row[0] != besides.pk]
    return sum(quotas.asked(size) * count if promised is None else int(promised) for promised, size, count in held)


def _held(user: User) -> Iterable[tuple[Any, ...]]:
    """Of each live container: its id, what it was promised (None: nothing yet), what it asks for, on how many GPUs."""
    if settings.GPUSHARE_AUDIT_KEY:  # a node sees no other node's containers (web/services/joining/functions.py)
        return ask("SELECT container, promised, gpu_memory, gpu_count FROM gpushare_held(%s)", user.pk)
    live = Container.objects.live().filter(owner=user).order_by()
    return live.annotate(promised=Sum("claims__quota")).values_list("pk", "promised", "gpu_memory", "gpu_count")


def allows_image(limits: Allowed, image: str) -> bool:
    return limits.images is None or any(fnmatchcase(image, pattern) for pattern in limits.images)


def require_image(limits: Allowed, image: str) -> None:
    if not allows_image(limits, image):
        raise _over("image", f"You may not launch {image}: only {', '.join(limits.images or ()) or 'nothing'}.")


def require_launch(user: User, limits: Allowed, priority: int, quota: int, gpus: Iterable[str]) -> None:
    """Refuses a launch beyond the limits. `quota` is the sum over its GPUs, `gpus` those asked for by UUID."""
    require_ever(limits, priority, quota, gpus)
    live = len(list(_held(user))) if limits.containers is not None else 0
    if limits.containers is not None and live >= limits.containers:
        raise _over("", f"Your limit of live containers is {limits.containers}; you have {live}.")
    require_quota(user, limits, quota)


def require_ever(limits: Allowed, priority: int, quota: int, gpus: Iterable[str]) -> None:
    """The same whatever else the person has: what waiting for one's own containers to end cannot help."""
    require_gpus(limits, gpus)
    require_priority(limits, priority)
    if limits.gpu_memory is not None and quota > limits.gpu_memory:
        most = format_size(limits.gpu_memory)
        raise _over("gpu_memory", f"This quota is {format_size(quota)}; your quotas together may be at most {most}.")
    if limits.containers == 0:
        raise _over("", "You may have no containers.")


def require_gpus(limits: Allowed, gpus: Iterable[str]) -> None:
    if limits.gpus is not None and (refused := [gpu for gpu in gpus if gpu not in limits.gpus]):
        raise _over("gpus", f"You may not use GPU {refused[0]}.")


def require_priority(limits: Allowed, priority: int) -> None:
    lowest, highest = limits.priority_lowest, limits.priority_highest
    if (lowest is not None and priority < lowest) or (highest is not None and priority > highest):
        words = " and ".join(
            [f"at least {lowest}"] * (lowest is not None) + [f"at most {highest}"] * (highest is not None)
        )
        raise _over("priority", f"Your priority may be {words}.")


def share(limits: Allowed, weight: int | None, limit: int | None) -> dict[str, int | None]:
    """The compute_weight and compute_limit of a launch that asks for these; for None the usual, or what is allowed."""
    if weight is None:
        weight = min(USUAL_WEIGHT, limits.compute_weight or USUAL_WEIGHT)
    limit = limits.compute_limit if limit is None else limit
    require_share(limits, compute_weight=weight, compute_limit=limit)
    return {"compute_weight": weight, "compute_limit": limit}


def require_share(limits: Allowed, **asked: int | None) -> None:
    """Refuses a compute_weight or compute_limit beyond the limits. No compute_limit at all is more than any."""
    heaviest, most = limits.compute_weight, limits.compute_limit
    if heaviest is not None and (asked.get("compute_weight") or 0) > heaviest:
        raise _over("compute_weight", f"The weight of your containers may be at most {heaviest}.")
    if most is not None and "compute_limit" in asked and (asked["compute_limit"] or 100) > most:
        raise _over("compute_limit", f"The GPU time limit of your containers may be at most {most} %.")


def require_quota(user: User, limits: Allowed, quota: int, besides: Container | None = None) -> None:
    if limits.gpu_memory is None:
        return
    held = quota_held(user, besides)
    if held + quota > limits.gpu_memory:
        raise _over(
            "gpu_memory",
            f"This quota is {format_size(quota)}; your other quotas are {format_size(held)} together, and the limit "
            f"for all is {format_size(limits.gpu_memory)}.",
        )


def require_promise(container: Container, quota: int) -> None:
    """Refuses a quota (bytes, over all its GPUs) beyond the owner's allowance. In the transaction that makes it so."""
    owner = container.owner
    hold(owner)
    require_quota(owner, limits_of(owner), quota, besides=container)


def _over(field: str, message: str) -> Problem:
    return Problem("over_allowance", message, 403, field)
