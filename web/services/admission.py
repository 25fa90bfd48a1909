"""Admission: a container comes to be within its owner's allowance, by one sequence of steps for all four ways.

    launch              REST, the form, the command line: the node's scheduler starts it and promises its quota
    mounted volume      Docker starts it, and a volume of ours brings its quota (mounting.py)
    Kubernetes claim    the cluster has chosen the cards, and how much of each (claiming.py)
    repeated run        a Swarm starts a launch again (runs.py)

Each way says what is asked for and where it goes; what its owner may have and what is written is decided here.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from web import audit
from web.errors import Problem, conflict
from web.history.reports import gib_hours_of_week
from web.models import Claim, Container, Gpu
from web.models.functions import ask
from web.people import allowances
from web.services.placement.place import Place
from web.spec.requests import COLUMNS

LONGEST_NAME = 63


@dataclass(frozen=True, slots=True)
class Account:
    """What an owner may have. `gib_hours`: what they held in the last seven days, where that is limited."""

    owner: User
    limits: allowances.Allowed
    gib_hours: float
    entries: list[Callable[[], None]] = field(default_factory=list)  # of the audit log, to be written

    def require(self, place: Place, priority: int, images: Sequence[str] = ()) -> None:
        """Refuses what is beyond the allowance, with Problem `over_allowance`."""
        self.require_hours()
        for image in images:
            allowances.require_image(self.limits, image)
        allowances.require_launch(self.owner, self.limits, priority, place.quota, place.gpus)

    def require_hours(self) -> None:
        """Refuses once the owner has used up the allowance of the last seven days."""
        if self.limits.gib_hours is not None and self.gib_hours >= self.limits.gib_hours:
            raise Problem(
                "over_allowance",
                f"You held {self.gib_hours:.1f} GiB·hours in the last seven days, and may hold "
                f"{self.limits.gib_hours:g}.",
                403,
            )


def account_of(owner: User) -> Account:
    limits = allowances.limits_of(owner)
    return Account(owner, limits, gib_hours_of_week(owner) if limits.gib_hours is not None else 0.0)


@contextmanager
def held(owner: User, ours: Callable[[], None] = lambda: None) -> Iterator[Account]:
    """A transaction in which nothing else is given under this owner's allowance.

    `ours` is called first in it, and raises if the node is another scheduler's by now. The audit log's entry comes
    last: until the transaction ends, everybody waits for it.
    """
    hours = None
    while True:
        with transaction.atomic():
            ours()
            allowances.hold(owner)
            limits = allowances.limits_of(owner)  # they may have been changed while the owner was waited for
            if hours is not None or limits.gib_hours is None:
                account = Account(owner, limits, hours or 0.0)
                yield account
                for write in account.entries:
                    write()
                return
        hours = gib_hours_of_week(owner)  # outside of the transaction: it may read a week of events


def admit(
    account: Account,
    place: Place,
    spec: Mapping[str, Any],
    *,
    by: str,
    action: str,
    detail: Mapping[str, Any],
    images: Sequence[str] = (),
    **columns: Any,
) -> Container:
    """The record of one more container, with its claims and its entry in the audit log. Within `held`.

    `spec`: the fields of the launch. `by`, `action` and `detail` are the entry's. `images`: all of them, if they are
    several. `columns`: of the record, before what `spec` says. Raises Problem, and has written nothing then.
    """
    owner, limits = account.owner, account.limits
    columns = {"gpu_count": len(place.claims), **{name: spec[name] for name in COLUMNS}, **columns}
    known = images or [columns["image"]] * bool(columns["image"])
    account.require(place, spec["priority"], known)
    share = allowances.share(limits, spec["compute_weight"], spec["compute_limit"])
    container = Container(owner=owner, node=place.node, node_reason=place.reason[:500], **columns | share)
    try:
        with transaction.atomic():
            container.save(force_insert=True)
    except IntegrityError:  # somebody took the name in between
        raise name_taken(container.name) from None
    promise(container, place.claims)
    detail = {**detail, **share, **({"owner": owner.get_username()} if owner.get_username() != by else {})}
    account.entries.append(partial(audit.record, by, action, container.pk, name=container.name, **detail))
    return container


def promise(container: Container, claims: Mapping[str, int]) -> None:
    """`claims`: bytes by GPU."""
    gpus = Gpu.objects.filter(uuid__in=claims) if claims else ()
    Claim.objects.bulk_create(Claim(container=container, gpu=gpu, quota=claims[gpu.uuid]) for gpu in gpus)


@contextmanager
def refusals_recorded(actor: str, action: str, subject: str, **detail: Any) -> Iterator[None]:
    try:
        yield
    except Problem as problem:
        audit.record(actor, action, subject[:200], **detail, code=problem.code, message=problem.message)
        raise


def printable(fields: Mapping[str, Any]) -> dict[str, str]:
    """What the audit log says of fields that may hold anything."""
    return {name[:64]: str(value).replace("\0", "")[:200] for name, value in fields.items()}


def free_name(asked: str, id_: UUID) -> str:
    """What Docker calls it, as far as that is a name here and no live container has it."""
    name = re.sub(r"[^a-zA-Z0-9_.-]+", "-", asked).lstrip("_.-")[:LONGEST_NAME] or "container"
    if is_taken(name):
        name = f"{name[: LONGEST_NAME - 9]}-{str(id_)[:8]}"
    return name


def is_taken(name: str) -> bool:
    """By a live container of any host."""
    if settings.GPUSHARE_AUDIT_KEY:
        ((taken,),) = ask("SELECT gpushare_is_named(%s)", name)
        return bool(taken)
    return Container.objects.live().filter(name=name).exists()


def name_taken(name: str) -> Problem:
    return conflict(f'A container named "{name}" already exists.', "name", code="name_taken")
