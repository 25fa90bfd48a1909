"""Sign-in against an LDAP server, through django-auth-ldap."""

import logging
import re
from typing import Any

from django.contrib.auth import get_user_model
from django_auth_ldap.backend import LDAPBackend
from ldap.dn import str2dn

from web.people.accounts import one_at_a_time
from web.people.directory import follow_groups, is_local, is_usable
from web.people.names import account_of

log = logging.getLogger(__name__)
_NAMES = re.compile(r"\(([A-Za-z][\w.-]*)=%\(user\)s\)")  # "(uid=%(user)s)", alone or within a longer filter


class Backend(LDAPBackend):  # type: ignore[misc]  # not installed where types are checked
    def authenticate_ldap_user(self, ldap_user: Any, password: str) -> Any:
        user = super().authenticate_ldap_user(ldap_user, password)
        if user is None or not user.is_active:
            return None
        if self.settings.GROUP_SEARCH is not None:
            follow_groups(user, ldap_user.group_names)
        return user

    def get_user(self, user_id: Any) -> Any:
        user = super().get_user(user_id)
        return user if user is not None and user.is_active else None  # the library would keep their sessions open

    def get_or_build_user(self, username: str, ldap_user: Any) -> tuple[Any, bool]:
        """Not the library's, which leaves it to the database which names are one; a new account is saved at once."""
        name = self._name_of(username, ldap_user).lower()
        with one_at_a_time():
            if not is_usable(name):
                raise ldap_user.AuthenticationFailed("no account can have this name")
            if is_local(name):
                raise ldap_user.AuthenticationFailed("this account has its password here")
            if user := account_of(name):
                return user, False
            user = get_user_model()(username=name)
            user.set_unusable_password()
            user.save()
        return user, True

    def _name_of(self, typed: str, ldap_user: Any) -> str:
        """The entry's own name. Servers find it by more than Django takes for the same, such as "ｇｒａｃｅ"."""
        normal = get_user_model().normalize_username(typed)
        attribute = _NAMES.search(self.settings.USER_SEARCH.filterstr)
        if attribute is None:  # such as (userPrincipalName=%(user)s@lab.example)
            return normal
        names: list[str] = sorted(ldap_user.attrs.get(attribute[1], []))
        if normal.casefold() not in (get_user_model().normalize_username(name).casefold() for name in names):
            log.warning("%s has no %s %r, so nobody can sign in by it", ldap_user.dn, attribute[1], typed)
            raise ldap_user.AuthenticationFailed("the entry does not have the name that it was found by")
        return _one_of(names, _name_in(ldap_user.dn, attribute[1]))


def _one_of(names: list[str], own: str) -> str:
    """Of an entry's several names always the same, whichever was typed: one person is one account, with one allowance.

    That of the account that is there already; else the name by which the entry stands in the tree; else the first.
    """
    if len(names) > 1:
        known = set(get_user_model().objects.filter(username__in=names).values_list("username", flat=True))
        names = [name for name in names if name in known] or names
    return own if own in names else names[0]


def _name_in(dn: str, attribute: str) -> str:
    """ "ada" of "uid=ada,ou=people,dc=lab" for uid; empty if the entry stands there by something else."""
    first = str2dn(dn)[0]
    return next((value for name, value, _ in first if name.lower() == attribute.lower()), "")
