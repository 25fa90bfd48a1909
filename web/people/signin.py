"""Signing in: too many failures slow it down, and each attempt is recorded.

It stands in front of every other way to check a password (REST, the login page, the admin site, LDAP), as the first
authentication backend: Django asks it first, and a PermissionDenied from it ends the attempt.
"""

import time
from datetime import datetime
from math import ceil
from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest

from web import audit
from web.budgets import address_key
from web.errors import Problem

FAILURES = 10  # in a row, for one name from one address, or one IPv6 network: whoever has one has 2**64 addresses
FAILURES_OF_ADDRESS = 50  # whatever the names: somebody who tries a list of them
PAUSE = 300  # seconds that have to pass without an attempt


class Throttle:
    """An authentication backend that knows nobody; it only says when it is enough."""

    def authenticate(self, request: HttpRequest | None, username: str | None = None, **credentials: Any) -> None:
        if wait_of(request, username or ""):
            raise PermissionDenied("Too many failed attempts.")


class SignInForm(AuthenticationForm):
    """A name and a password, on the sign-in page and on the admin site's."""

    error_messages = {
        **AuthenticationForm.error_messages,
        "invalid_login": "Wrong name or password. Both are case-sensitive.",
    }

    def clean(self) -> dict[str, Any]:
        try:
            require_patience(self.request, self.cleaned_data.get("username", ""))
        except Problem as problem:
            raise ValidationError(problem.message) from None
        return super().clean()


def require_patience(request: HttpRequest | None, username: str) -> None:
    """Refuses, before anything is tried, while this name may not be tried from this address; Problem 429."""
    if wait := wait_of(request, username):
        message = f"Too many failed attempts. Try again in {ceil(wait)} seconds."
        raise Problem("too_many_requests", message, 429, wait=wait)


def wait_of(request: HttpRequest | None, username: str) -> float:
    """Seconds until this name may be tried again from this address; 0.0 if it may be now."""
    by_name, by_address = _keys(request, username)
    found = cache.get_many([by_name, by_address, _until(by_name), _until(by_address)])
    limits = {by_name: FAILURES, by_address: FAILURES_OF_ADDRESS}
    blocked = [key for key, limit in limits.items() if found.get(key, 0) >= limit]
    now = time.time()
    waits = (found.get(_until(key), now + PAUSE) - now for key in blocked)
    return max((min(max(wait, 1.0), PAUSE) for wait in waits), default=0.0)


def note_failure(sender: Any, credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any) -> None:
    username = str(credentials.get("username") or "")
    for key in _keys(request, username):
        if not cache.add(key, 1, PAUSE):
            try:
                cache.incr(key)
                cache.touch(key, PAUSE)
            except ValueError:  # it expired in between
                cache.set(key, 1, PAUSE)
        cache.set(_until(key), time.time() + PAUSE, PAUSE)  # caches do not say how long they will keep a count
    audit.record(username, "sign-in-failed")


def note_sign_in(sender: Any, request: HttpRequest, user: Any, **_: Any) -> None:
    forget_failures(request, user.get_username())
    request.session.set_expiry(None)  # as long as anybody's, also if it was a stranger's before (directory/oidc.py)
    audit.record(user.get_username(), "sign-in")


def note_sign_out(sender: Any, request: HttpRequest, user: Any, **_: Any) -> None:
    if user is not None:
        audit.record(user.get_username(), "sign-out")


def forget_failures(request: HttpRequest | None, username: str) -> None:
    cache.delete(_keys(request, username)[0])


def connect() -> None:
    user_login_failed.connect(note_failure, dispatch_uid="gpushare")
    user_logged_in.connect(note_sign_in, dispatch_uid="gpushare")
    user_logged_out.connect(note_sign_out, dispatch_uid="gpushare")


def _keys(request: HttpRequest | None, username: str) -> tuple[str, str]:
    address = address_key(str(request.META.get("REMOTE_ADDR") or "")) if request is not None else ""
    # Hex: cache keys may not hold spaces or control characters, names from outside may.
    return f"failures:{address}:{username.lower()[:150].encode().hex()}", f"failures:{address}"


def _until(key: str) -> str:
    return f"{key}:until"


def forget_sessions(now: datetime) -> None:
    """Those that are over: Django keeps them until somebody takes them away."""
    Session.objects.filter(expire_date__lt=now).delete()
