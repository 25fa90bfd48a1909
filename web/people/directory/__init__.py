"""People who are known elsewhere: LDAP and OIDC. Both libraries are extras (`pip install gpushare[signin]`).

A directory says who somebody is and in which of its groups; GPUSHARE_GROUPS says which of those mean a role or a
group here ("gpu-admins=admin vision=vision"). It is never asked about an account that has a password here: otherwise
whoever may make accounts in the directory could make one named "admin" and be ours.
"""

import logging
from collections.abc import Iterable

from django.conf import settings
from django.contrib.auth.models import Group, User

from web import audit
from web.errors import Problem
from web.people import names
from web.people.accounts import fault_of_name, require_new

log = logging.getLogger(__name__)


def is_usable(username: str) -> bool:
    """Whether an account has, or may have, this name that a directory tells; the log says if not.

    Names end up in paths ("{user}" in GPUSHARE_VOLUME_ROOTS), so what Django's forms refuse is refused here too: "/"
    and control characters among it. So is a name that Django would write differently, and a new one that can be taken
    for another's.
    """
    fault = fault_of_name(username)
    if not fault and names.account_of(username) is None:
        try:
            require_new(username)
        except Problem as problem:
            fault = problem.message
    if fault:
        log.warning("The directory's name %r cannot be that of an account: %s", username, fault)
    return not fault


def is_local(username: str) -> bool:
    """Whether somebody signs in under this name with a password that is kept here."""
    user = names.account_of(username)
    return user is not None and user.has_usable_password()


def follow_groups(user: User, groups: Iterable[str]) -> None:
    """Makes the user's groups those that the directory tells; groups that it has no say in stay as they are."""
    mapping: dict[str, str] = settings.GPUSHARE_GROUPS
    given = {mapping[name] for name in groups if name in mapping}
    held = set(user.groups.filter(name__in=mapping.values()).values_list("name", flat=True))
    if given == held:
        return
    user.groups.remove(*Group.objects.filter(name__in=held - given))
    user.groups.add(*(Group.objects.get_or_create(name=name)[0] for name in given - held))
    audit.record(user.get_username(), "groups", user.get_username(), before=sorted(held), after=sorted(given))
