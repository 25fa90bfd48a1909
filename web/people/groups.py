"""Groups: made, ended, and who is in them. Those of the roles are not touched here: a role is given to a person."""

from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction

from web import audit
from web.errors import Problem, conflict, invalid, not_found
from web.people import granting, names
from web.people.accounts import administered, fault_of_group
from web.people.roles import Deed, is_role, require
from web.spec.people import GroupSpec, MembersSpec


def find(actor: User, name: str) -> Group:
    """A group, for an admin. Raises Problem."""
    require(actor, Deed.MANAGE)
    group = Group.objects.filter(name=name).first()
    if group is None:
        raise not_found("There is no group of this name.", "name")
    return group


def create(actor: User, asked: Any) -> Group:
    require(actor, Deed.MANAGE)
    name = GroupSpec.parse(asked)["name"]
    with administered():
        require_name(name)
        try:
            with transaction.atomic():
                group = Group.objects.create(name=name)
        except IntegrityError:
            raise _taken(name) from None
        audit.record(actor.get_username(), "group-created", name)
    return group


def delete(actor: User, group: Group) -> None:
    """With its allowance: what that allowed or forbade its members, it no longer does."""
    require(actor, Deed.MANAGE)
    require_no_role(group)
    with administered():
        require_there(group)
        allowance = granting.of(group)
        lost = {"members": members_of(group), "allowance": granting.as_dict(allowance) if allowance else None}
        # Before the log: whoever changes the allowance holds its row and asks for the audit chain, as we then do.
        group.delete()
        audit.record(actor.get_username(), "group-deleted", group.name, **lost)


def change_members(actor: User, group: Group, asked: Any) -> Group:
    """Who is to be in it from now on, and who is not (`MembersSpec`). Raises Problem."""
    require(actor, Deed.MANAGE)
    spec = MembersSpec.parse(asked)
    if not spec:
        raise invalid("Nothing to change: give add, remove or both.")
    require_no_role(group)
    with administered():
        require_there(group)
        before = set(members_of(group))
        group.user_set.add(*_people(spec.get("add", []), "add"))
        group.user_set.remove(*_people(spec.get("remove", []), "remove"))
        after = set(members_of(group))
        if before != after:
            audit.record(actor.get_username(), "group-changed", group.name, added=sorted(after - before),
                         removed=sorted(before - after))  # fmt: skip
    return group


def members_of(group: Group) -> list[str]:
    return list(group.user_set.order_by("username").values_list("username", flat=True))


def _people(asked: list[str], field: str) -> list[User]:
    found = list(get_user_model().objects.filter(username__in=asked))
    if missing := sorted(set(asked) - {user.get_username() for user in found}):
        raise Problem("unknown_person", f'There is no account "{missing[0]}".', 400, field)
    return found


def require_name(name: str, besides: Group | None = None) -> None:
    """Refuses what no group may be called, and what can be taken for another's name. Raises Problem."""
    if fault := fault_of_group(name) or names.fault_of_scripts(name):
        raise invalid(fault, "name")
    others = Group.objects.exclude(pk=besides.pk) if besides else Group.objects.all()
    if same := names.alike(others, "name", name):
        raise _taken(same)


def require_no_role(group: Group) -> None:
    """Roles stay as they are: their groups are neither renamed nor deleted. Raises Problem."""
    if is_role(group):
        raise conflict(f'"{group.name}" is a role: it stays, and is given to each person as their role.', code="role")


def require_there(group: Group) -> None:
    """Inside `administered`, where nobody else deletes one."""
    if not Group.objects.filter(pk=group.pk).exists():
        raise not_found(f'The group "{group.name}" was deleted just now.', "name")


def _taken(name: str) -> Problem:
    return conflict(f'There is a group "{name}" already.', "name", "name_taken")
