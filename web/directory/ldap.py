"""Sign-in against an LDAP server, through django-auth-ldap."""

from __future__ import annotations

from typing import Any

from django_auth_ldap.backend import LDAPBackend

from web.directory import follow_groups, is_local


class Backend(LDAPBackend):  # type: ignore[misc]  # not installed where types are checked
    def authenticate_ldap_user(self, ldap_user: Any, password: str) -> Any:
        user = super().authenticate_ldap_user(ldap_user, password)
        if user is not None and self.settings.GROUP_SEARCH is not None:
            follow_groups(user, ldap_user.group_names)
        return user

    def get_or_build_user(self, username: str, ldap_user: Any) -> tuple[Any, bool]:
        if is_local(username):
            raise ldap_user.AuthenticationFailed("this account has its password here")
        user, built = super().get_or_build_user(username, ldap_user)
        return user, built
