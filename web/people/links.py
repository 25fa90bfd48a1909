"""Links that sign in: once, and within minutes.

The key stands in the address behind a #, which browsers send to nobody: it is in no log and no Referer. The page there
posts it (templates/enter.html).
"""

import ipaddress
import secrets
from datetime import timedelta

from django.contrib.auth import login
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from web import audit
from web.errors import Problem
from web.models import SignInLink
from web.people.tokens import digest

LASTS = timedelta(minutes=10)
BACKEND = "django.contrib.auth.backends.ModelBackend"
SPENT = (
    "This link is no longer valid: it signs in once, within ten minutes. Sign in with a password, or start the "
    "appliance again: it prints a new one."
)
ELSEWHERE = "This link works only in a browser on the appliance's own host. Sign in with a password."


def make(user: User, *, loopback: bool) -> str:
    """The key of a new one. `loopback`: for browsers on this host only."""
    SignInLink.objects.filter(expires_at__lte=timezone.now()).delete()
    key = secrets.token_urlsafe(32)
    with transaction.atomic():
        SignInLink.objects.create(user=user, digest=digest(key), expires_at=timezone.now() + LASTS, loopback=loopback)
        audit.record(user.get_username(), "sign-in-link-made", loopback=loopback, minutes=LASTS.seconds // 60)
    return key


def use(request: HttpRequest, key: str) -> None:
    """Signs the session in. Raises Problem 403; of those who use one at once, for all but one."""
    good = SignInLink.objects.filter(expires_at__gt=timezone.now(), digest=digest(key))
    link = good.select_related("user").first()
    if link is None or not link.user.is_active:
        _refuse(SPENT, link)
    elif link.loopback and not is_loopback(str(request.META.get("REMOTE_ADDR") or "")):
        _refuse(ELSEWHERE, link)
    elif not good.delete()[0]:  # another request was faster
        _refuse(SPENT, link)
    else:
        audit.record(link.user.get_username(), "sign-in-link-used")
        login(request, link.user, backend=BACKEND)


def _refuse(why: str, link: SignInLink | None) -> None:
    audit.record(link.user.get_username() if link else "", "sign-in-failed", link=True)
    raise Problem("forbidden", why, 403)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
