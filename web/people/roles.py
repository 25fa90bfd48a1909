"""Who may do what: four roles, each including the one before, and ownership.

viewer looks (everything but other people's output, command lines and environments); user launches, and steers what is
theirs; operator steers everybody's containers and the queue; admin sets the policy, reads the audit log and manages
people. A role is the Django group of that name; a superuser is an admin; somebody in none of the groups has
GPUSHARE_DEFAULT_ROLE.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth.models import Group
from django.db.models import Exists, Q, QuerySet

from web.errors import forbidden
from web.models import Container

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class Role(IntEnum):
    VIEWER = 1
    USER = 2
    OPERATOR = 3
    ADMIN = 4

    @property
    def group(self) -> str:
        """The name of its Django group."""
        return self.name.lower()


def role_of(user: User) -> Role:
    if user.is_superuser:
        return Role.ADMIN
    names = set(user.groups.values_list("name", flat=True))
    held = [role for role in Role if role.group in names]
    return max(held, default=Role[settings.GPUSHARE_DEFAULT_ROLE.upper()])


def groups_of(user: User) -> QuerySet[Group]:
    """The user's groups, and that of the role which `role_of` gives without membership. Made for use in a subquery."""
    if user.is_superuser:
        return Group.objects.filter(Q(user=user) | Q(name=Role.ADMIN.group)).distinct()
    in_a_role = Group.objects.filter(user=user, name__in=[role.group for role in Role])
    by_default = Q(~Exists(in_a_role), name=settings.GPUSHARE_DEFAULT_ROLE)
    return Group.objects.filter(Q(user=user) | by_default).distinct()


def require(user: User, role: Role, deed: str) -> None:
    """Refuses unless `user` has at least `role`. `deed` ends the sentence: "only an operator may …"."""
    if role_of(user) < role:
        article = "an" if role.group[0] in "aeio" else "a"
        raise forbidden(f"Only {article} {role.group} may {deed}.")


def steered_by(user: User) -> Callable[[Container], bool]:
    """Which containers the user may steer, with the role looked up once."""
    role = role_of(user)
    return lambda container: role >= Role.OPERATOR or (role >= Role.USER and container.owner_id == user.pk)


def may_steer(user: User, container: Container) -> bool:
    return steered_by(user)(container)


def require_steering(user: User, container: Container, deed: str) -> None:
    """Refuses unless the container is the user's own, or the user is an operator."""
    if not may_steer(user, container):
        raise forbidden(f'You may not {deed} "{container.name}": it belongs to {container.owner.get_username()}.')
