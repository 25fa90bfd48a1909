"""What people, groups and allowances look like from outside (docs/rest.md)."""

from typing import Any

from django.contrib.auth.models import Group, User
from rest_framework import serializers

from web.api.me import AllowedAnswer, SourceAnswer
from web.people import accounts, allowances, granting, passwords, shares
from web.people.roles import Role, groups_besides_role, is_role, role_held
from web.spec.inside import mounts


class AllowanceAnswer(AllowedAnswer):
    """An allowance as it was given: to a person or to a group, the other is null. null: it sets no limit."""

    person = serializers.CharField(source="user.username", allow_null=True, default=None)
    group = serializers.CharField(source="group.name", allow_null=True, default=None)


class PersonAnswer(serializers.Serializer[Any]):
    username = serializers.CharField()
    email = serializers.CharField(allow_blank=True)
    role = serializers.ChoiceField([role.group for role in Role])
    groups = serializers.ListField(child=serializers.CharField(), help_text="Besides the role's.")
    active = serializers.BooleanField()
    signs_in = serializers.ChoiceField(list(passwords.KINDS), help_text="Where the password is kept.")
    created_at = serializers.DateTimeField()
    last_sign_in = serializers.DateTimeField(allow_null=True, help_text="In a browser; null: never.")


class PersonSharesAnswer(serializers.Serializer[Any]):
    shares = serializers.IntegerField()
    share_group = serializers.CharField(allow_null=True, help_text="The one chosen; null: the first by name.")
    groups = serializers.ListField(child=serializers.CharField(), help_text="Theirs that have shares.")
    boost = serializers.IntegerField(help_text="Multiplies the shares; 1: there is none.")
    boost_until = serializers.DateTimeField(allow_null=True)
    forgiven = serializers.IntegerField(help_text="How often their usage was set to zero.")


class OnePersonAnswer(PersonAnswer):
    """With their own allowance (null: none), the limits in force, and where each of these comes from."""

    allowance = AllowanceAnswer(allow_null=True)
    fair_share = PersonSharesAnswer()
    limits = AllowedAnswer()
    sources = serializers.DictField(child=SourceAnswer())
    volume_roots = serializers.ListField(child=serializers.CharField())
    by_directory = serializers.ListField(
        child=serializers.CharField(), help_text="Groups and roles that a directory decides on at each sign-in."
    )


class NewPersonAnswer(OnePersonAnswer):
    password = serializers.CharField(allow_null=True, help_text="The one that was made up; shown this once.")


class GroupAnswer(serializers.Serializer[Any]):
    """`role`: it is the group of that role, whose members have it."""

    name = serializers.CharField()
    role = serializers.BooleanField()
    members = serializers.ListField(child=serializers.CharField())
    shares = serializers.IntegerField(allow_null=True, help_text="Its fair share; null: the group does not count.")
    allowance = AllowanceAnswer(allow_null=True)


def person_of(user: User) -> dict[str, Any]:
    """For lists; the user's groups may be prefetched."""
    names = [group.name for group in user.groups.all()]
    return {
        "username": user.get_username(),
        "email": user.email,
        "role": role_held(user, names).group,
        "groups": sorted(groups_besides_role(user)),
        "active": user.is_active,
        "signs_in": passwords.place(user).kind,
        "created_at": user.date_joined,
        "last_sign_in": user.last_login,
    }


def whole_person_of(user: User) -> dict[str, Any]:
    explained = allowances.explained(user)
    return person_of(user) | {
        "allowance": granting.of(user),
        "fair_share": shares_of(user),
        "limits": {name: limit.value for name, limit in explained.items()},
        "sources": explained,
        "volume_roots": mounts.roots_of(user.get_username()),
        "by_directory": accounts.by_directory(user),
    }


def shares_of(user: User) -> dict[str, Any]:
    row = shares.of(user)
    more = {"forgiven": row.forgiven, "groups": shares.groups_with_shares(user), "boost_until": row.boost_until}
    return shares.as_dict(row) | more


def group_of(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "role": is_role(group),
        "members": sorted(user.get_username() for user in group.user_set.all()),
        "shares": group.fair.shares if hasattr(group, "fair") else None,
        "allowance": getattr(group, "allowance", None),
    }
