"""Allowances as admins give them, to a person or to a group. Current limits for whom is allowances.py's."""

from dataclasses import fields
from typing import Any

from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from web import audit
from web.errors import Problem, invalid, not_found
from web.models import Allowance, Gpu
from web.people.allowances import Allowed
from web.people.roles import Deed, require
from web.spec.people import AllowanceSpec

FIELDS = tuple(field.name for field in fields(Allowed))


def of(subject: User | Group) -> Allowance | None:
    """Its own allowance, if it has one."""
    return Allowance.objects.filter(**_whose(subject)).first()


def as_dict(allowance: Allowance) -> dict[str, Any]:
    return {name: getattr(allowance, name) for name in FIELDS}


def grant(actor: User, subject: User | Group, asked: Any) -> Allowance:
    """Changes what is given (`AllowanceSpec`); what is left out stays as it is. Raises Problem."""
    require(actor, Deed.MANAGE)
    spec = AllowanceSpec.parse(asked)
    if not spec:
        raise invalid(f"Nothing to change: give one or more of {', '.join(FIELDS)}.")
    try:
        return _grant(actor, subject, spec)
    except IntegrityError:
        if type(subject)._default_manager.filter(pk=subject.pk).exists():
            raise
        raise not_found(f'"{_name(subject)}" was deleted just now, with its allowance.') from None


def _grant(actor: User, subject: User | Group, spec: dict[str, Any]) -> Allowance:
    with transaction.atomic():
        row, _ = Allowance.objects.select_for_update(no_key=True).get_or_create(**_whose(subject))
        before = as_dict(row)
        if spec.get("gpus"):
            spec["gpus"] = cards(spec["gpus"], stored=row.gpus or [])
        for name, value in spec.items():
            setattr(row, name, value)
        try:
            row.full_clean(exclude=["user", "group"], validate_unique=False, validate_constraints=False)
        except ValidationError as error:
            name, messages = next(iter(error.message_dict.items()))
            raise invalid(" ".join(messages), "" if name == "__all__" else name) from None
        row.save(update_fields=list(spec))
        changed = [name for name in spec if before[name] != spec[name]]
        if changed:
            audit.record(actor.get_username(), "allowance-changed", _name(subject), of=_kind(subject),
                         before={name: before[name] for name in changed},
                         after={name: spec[name] for name in changed})  # fmt: skip
    return row


def withdraw(actor: User, subject: User | Group) -> None:
    """Takes the whole allowance away: from then on only those of others, if any, bind whom it bound."""
    require(actor, Deed.MANAGE)
    with transaction.atomic():
        row = Allowance.objects.select_for_update(of=("self",)).filter(**_whose(subject)).first()
        if row is not None:
            audit.record(actor.get_username(), "allowance-withdrawn", _name(subject), of=_kind(subject),
                         before=as_dict(row))  # fmt: skip
            row.delete()


def cards(named: list[str], stored: list[str]) -> list[str]:
    """The UUIDs of the cards named by UUID or index. One that is away now is known, and so is what was `stored`.

    A UUID that was mistyped would forbid all GPUs, and nobody would see why: Problem.
    """
    found = []
    for name in named:
        if name not in stored and (index := _index(name)) is not None:
            found.append(_at(index))
        elif name in stored or Gpu.objects.filter(uuid=name).exists():
            found.append(name)
        else:
            raise _unknown(name)
    return list(dict.fromkeys(found))


def _index(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and len(name) < 6 else None


def _at(index: int) -> str:
    """The UUID of the card of this index, if one host only has it."""
    cards = list(Gpu.objects.filter(index=index, present=True).select_related("node"))
    if not cards:
        raise _unknown(str(index))
    if len(cards) > 1:
        which = "; ".join(f"{gpu.uuid} of {gpu.node.name}" for gpu in cards[:8])
        raise Problem("unknown_gpu", f"Several hosts have a GPU {index}: name its UUID. {which}", 400, "gpus")
    return cards[0].uuid


def _unknown(name: str) -> Problem:
    return Problem("unknown_gpu", f"There is no GPU {name} here.", 400, "gpus")


def _whose(subject: User | Group) -> dict[str, Any]:
    return {"group" if isinstance(subject, Group) else "user": subject}


def _kind(subject: User | Group) -> str:
    return "group" if isinstance(subject, Group) else "person"


def _name(subject: User | Group) -> str:
    return subject.name if isinstance(subject, Group) else subject.get_username()
