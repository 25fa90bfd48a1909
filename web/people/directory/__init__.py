"""People who are known elsewhere: LDAP and OIDC. Both libraries are extras (`pip install gpushare[signin]`).

A directory says who somebody is and in which of its groups; GPUSHARE_GROUPS says which of those mean a role or a
group here ("gpu-admins=admin vision=vision"). It is never asked about an account that has a password here: otherwise
whoever may make accounts in the directory could make one named "admin" and be ours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from web import audit
from web.people.accounts import fault_of_name

if TYPE_CHECKING:
    from django.contrib.auth.models import User


log = logging.getLogger(__name__)


def is_usable(username: str) -> bool:
    """Whether an account may have this name that a directory tells; the log says if not.

    Names end up in paths ("{user}" in GPUSHARE_VOLUME_ROOTS), so what Django's forms refuse is refused here too: "/"
    and control characters among it. So is a name that Django would write differently: that one may be another's.
    """
    if fault := fault_of_name(username):
        log.warning("The directory's name %r cannot be that of an account: %s", username, fault)
    return not fault


def is_local(username: str) -> bool:
    """Whether somebody signs in under this name with a password that is kept here."""
    found = get_user_model().objects.filter(username__iexact=username)
    return any(user.has_usable_password() for user in found)


def follow_groups(user: User, names: Iterable[str]) -> None:
    """Makes the user's groups those that the directory tells; groups that it has no say in stay as they are."""
    mapping: dict[str, str] = settings.GPUSHARE_GROUPS
    told = {mapping[name] for name in names if name in mapping}
    held = set(user.groups.filter(name__in=mapping.values()).values_list("name", flat=True))
    if told == held:
        return
    user.groups.remove(*Group.objects.filter(name__in=held - told))
    user.groups.add(*(Group.objects.get_or_create(name=name)[0] for name in told - held))
    audit.record(user.get_username(), "groups", user.get_username(), before=sorted(held), after=sorted(told))
