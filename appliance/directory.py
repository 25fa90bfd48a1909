"""Settings for sign-in by LDAP and OIDC. settings.py hands in the environment; nothing set, nothing switched on.

Both: GPUSHARE_GROUPS, "group-there=group-here …".
"""

from collections.abc import Mapping
from typing import Any

from appliance.environment import switch

# PEOPLE and GROUPS: the bases of searches; the groups are of the class groupOfNames.
LDAP = ("URL", "PEOPLE", "FILTER", "GROUPS", "BIND_DN", "BIND_PASSWORD", "STARTTLS")
OIDC = ("CLIENT_ID", "CLIENT_SECRET", "ISSUER", "AUTHORIZE_URL", "TOKEN_URL", "USERINFO_URL", "JWKS_URL", "ALGORITHM",
        "SCOPES", "NAME_CLAIM", "GROUPS_CLAIM")  # fmt: skip
SETTINGS = (*(f"GPUSHARE_LDAP_{name}" for name in LDAP), *(f"GPUSHARE_OIDC_{name}" for name in OIDC))
TIMEOUT = 5  # seconds that a directory may take to answer


def group_map(text: str) -> dict[str, str]:
    """ "a=b c=d" as a mapping; a word without "=" keeps its name."""
    pairs = (word.partition("=") for word in text.replace(",", " ").split())
    return {there: here or there for there, _, here in pairs}


def ldap(environment: Mapping[str, str]) -> dict[str, Any]:
    """django-auth-ldap's settings; empty if GPUSHARE_LDAP_URL is not set."""
    given = {key.removeprefix("GPUSHARE_LDAP_"): value for key, value in environment.items() if value}
    if "URL" not in given:
        return {}
    import ldap as library
    from django_auth_ldap.config import GroupOfNamesType, LDAPSearch

    found: dict[str, Any] = {
        "AUTH_LDAP_SERVER_URI": given["URL"],
        "AUTH_LDAP_BIND_DN": given.get("BIND_DN", ""),
        "AUTH_LDAP_BIND_PASSWORD": given.get("BIND_PASSWORD", ""),
        "AUTH_LDAP_START_TLS": switch("GPUSHARE_LDAP_STARTTLS", environment),
        "AUTH_LDAP_CONNECTION_OPTIONS": {
            library.OPT_NETWORK_TIMEOUT: TIMEOUT, library.OPT_TIMEOUT: TIMEOUT, library.OPT_REFERRALS: 0,
        },
        "AUTH_LDAP_USER_SEARCH": LDAPSearch(
            given.get("PEOPLE", ""), library.SCOPE_SUBTREE, given.get("FILTER", "(uid=%(user)s)")
        ),
        "AUTH_LDAP_USER_ATTR_MAP": {"first_name": "givenName", "last_name": "sn", "email": "mail"},
    }  # fmt: skip
    if "GROUPS" in given:
        search = LDAPSearch(given["GROUPS"], library.SCOPE_SUBTREE, "(objectClass=groupOfNames)")
        found |= {"AUTH_LDAP_GROUP_SEARCH": search, "AUTH_LDAP_GROUP_TYPE": GroupOfNamesType()}
    return found


def oidc(environment: Mapping[str, str]) -> dict[str, Any]:
    """mozilla-django-oidc's settings; empty if GPUSHARE_OIDC_CLIENT_ID is not set."""
    given = {key.removeprefix("GPUSHARE_OIDC_"): value for key, value in environment.items() if value}
    if "CLIENT_ID" not in given:
        return {}
    return {
        "OIDC_RP_CLIENT_ID": given["CLIENT_ID"],
        "OIDC_RP_CLIENT_SECRET": given.get("CLIENT_SECRET", ""),
        "OIDC_OP_AUTHORIZATION_ENDPOINT": given["AUTHORIZE_URL"],
        "OIDC_OP_TOKEN_ENDPOINT": given["TOKEN_URL"],
        "OIDC_OP_USER_ENDPOINT": given["USERINFO_URL"],
        "OIDC_OP_JWKS_ENDPOINT": given.get("JWKS_URL"),
        "OIDC_RP_SIGN_ALGO": given.get("ALGORITHM", "RS256"),
        "OIDC_RP_SCOPES": given.get("SCOPES", "openid email profile"),
        "OIDC_USE_PKCE": True,
        "OIDC_AUTHENTICATE_CLASS": "web.people.directory.oidc.Begin",
        "OIDC_TIMEOUT": TIMEOUT,
        "GPUSHARE_OIDC_ISSUER": given.get("ISSUER", ""),
        "GPUSHARE_OIDC_NAME_CLAIM": given.get("NAME_CLAIM", "preferred_username"),
        "GPUSHARE_OIDC_GROUPS_CLAIM": given.get("GROUPS_CLAIM", "groups"),
    }
