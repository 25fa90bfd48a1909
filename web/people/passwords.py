"""Passwords: where somebody's is kept, and changing one that is kept here."""

from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth import authenticate, update_session_auth_hash
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest

from web import audit
from web.errors import Problem, conflict, invalid
from web.people import signin
from web.spec.people import PasswordSpec

KINDS = HERE, LDAP, OIDC, NOWHERE = "here", "ldap", "oidc", "nowhere"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a person signs in: `kind` is here, ldap, oidc or nowhere; `explanation` is an admin's, `advice` theirs."""

    kind: str
    explanation: str
    advice: str = ""


def place(user: User) -> Place:
    if user.has_usable_password():
        return Place(HERE, "With a password that is kept here.")
    if settings.LDAP:
        server = str(settings.LDAP["AUTH_LDAP_SERVER_URI"])
        text = f"By the directory {server}; no password is kept here."
        return Place(LDAP, text, f"Your password is kept in the directory {server}, not here. Change it there.")
    if settings.OIDC:
        issuer = settings.OIDC["GPUSHARE_OIDC_ISSUER"] or settings.OIDC["OIDC_OP_AUTHORIZATION_ENDPOINT"]
        text = f"By {issuer}; no password is kept here."
        return Place(OIDC, text, f"You sign in at {issuer}, where your password is kept. Change it there.")
    text = "Not at all: it has no password. An admin can set one."
    return Place(NOWHERE, text, "Your account has no password. An admin can set one.")


def change(request: HttpRequest, user: User, old: str, new: str) -> None:
    """Another password for oneself, by the one that holds now. Other sessions end; tokens go on. Raises Problem.

    A wrong old one counts as a failed sign-in: who found a screen unlocked cannot try them all.
    """
    asked = PasswordSpec.parse({"old": old, "new": new})
    if (where := place(user)).kind != HERE:
        raise conflict(where.advice, code="password_elsewhere")
    name = user.get_username()
    signin.require_patience(request, name)
    known = authenticate(request, username=name, password=asked["old"])
    if known is None or known.pk != user.pk:
        raise Problem("bad_credentials", "This is not your current password. It is case-sensitive.", 403, "old")
    signin.forget_failures(request, name)
    require_good(user, asked["new"], "new")
    user.set_password(asked["new"])  # outside of the transaction: it takes a third of a second
    with transaction.atomic():
        user.save(update_fields=["password"])
        audit.record(name, "password-changed", name)
    if request.user.pk == user.pk and request.session.session_key:
        update_session_auth_hash(request, user)  # this session goes on


def require_good(user: User, password: str, field: str = "password") -> None:
    """Raises Problem if it is too short."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise invalid(" ".join(error.messages), field) from None
