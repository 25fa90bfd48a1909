"""How accounts begin and end: invitations, whose link lets somebody choose a password, and a day on which one ends.

The key stands in the link behind a #, which browsers send to nobody: it is in no log and no Referer.
"""

import logging
import secrets
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model, login
from django.contrib.auth.models import User
from django.core.mail import send_mail
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from web import audit
from web.errors import Problem, conflict, invalid
from web.models import Membership
from web.people import accounts, granting, passwords
from web.people.links import BACKEND
from web.people.roles import Deed, require
from web.people.tokens import digest

log = logging.getLogger(__name__)
LASTS = timedelta(days=7)  # an invitation
WARNS = timedelta(days=14)  # before an account ends
SPENT = "This invitation is no longer valid: it was used, withdrawn, or is older than seven days. Ask for a new one."


def invite(actor: User, asked: dict[str, Any], allowance: dict[str, Any], ends_at: datetime | None) -> tuple[User, str]:
    """An account without a password, with an allowance if one is given; and the key of its invitation. Raises Problem.

    All of it or nothing.
    """
    require_future(ends_at)
    with transaction.atomic():
        user, _ = accounts.create(actor, {**asked, "password": None})
        if allowance:
            granting.grant(actor, user, allowance)
        if ends_at is not None:
            set_end(actor, user, ends_at)
        return user, renew(actor, user)


def renew(actor: User, user: User) -> str:
    """The key of a new invitation; an earlier one is good no more. Raises Problem."""
    require(actor, Deed.MANAGE)
    if user.has_usable_password():
        raise conflict("This account has a password already. Set a new one instead.", code="has_password")
    key = secrets.token_urlsafe(32)
    with transaction.atomic():
        Membership.objects.update_or_create(
            user=user, defaults={"digest": digest(key), "expires_at": timezone.now() + LASTS}
        )
        audit.record(actor.get_username(), "person-invited", user.get_username(), days=LASTS.days)
    return key


def take_back(actor: User, user: User) -> None:
    """Nobody can use the invitation any more. The account stays, and can be invited again. Raises Problem."""
    require(actor, Deed.MANAGE)
    with transaction.atomic():
        Membership.objects.filter(user=user).update(digest=None, expires_at=None)
        audit.record(actor.get_username(), "invitation-taken-back", user.get_username())


def of(user: User) -> Membership | None:
    return Membership.objects.filter(user=user).first()


def open_until(user: User) -> datetime | None:
    """Until when the account's invitation is good; None: none is open."""
    row = getattr(user, "membership", None)
    return row.expires_at if row is not None and row.digest and row.expires_at > timezone.now() else None


def use(request: HttpRequest, key: str, password: str) -> User:
    """Gives the account its password and signs the session in. Raises Problem, of several at once for all but one."""
    good = Membership.objects.filter(digest=digest(key), expires_at__gt=timezone.now(), user__is_active=True)
    row = good.select_related("user").first()
    if row is None or row.user.has_usable_password():
        audit.record("", "sign-in-failed", invitation=True)
        raise Problem("forbidden", SPENT, 403)
    user = row.user
    passwords.require_good(user, password)
    user.set_password(password)  # outside of the transaction: it takes a third of a second
    with transaction.atomic():
        if not good.filter(pk=row.pk).update(digest=None, expires_at=None):
            raise Problem("forbidden", SPENT, 403)
        user.save(update_fields=["password"])
        audit.record(user.get_username(), "invitation-used", user.get_username())
    login(request, user, backend=BACKEND)
    return user


def set_end(actor: User, user: User, ends_at: datetime | None) -> None:
    """When the account is disabled by itself; None: never. Raises Problem."""
    require(actor, Deed.MANAGE)
    require_future(ends_at)
    with transaction.atomic():
        Membership.objects.update_or_create(user=user, defaults={"ends_at": ends_at, "warned_at": None})
        when = ends_at.isoformat() if ends_at else None
        audit.record(actor.get_username(), "person-end-set", user.get_username(), ends_at=when)


def require_future(ends_at: datetime | None) -> None:
    if ends_at is not None and ends_at <= timezone.now():
        raise invalid("An account ends in the future: give a later day.", "ends_at")


def ends_soon(user: User) -> datetime | None:
    """When this account ends, once that is near enough for a warning."""
    row = Membership.objects.filter(user=user, ends_at__lte=timezone.now() + WARNS).first()
    return row.ends_at if row else None


def look(now: datetime) -> None:
    """Disables accounts whose day has come, and warns by mail of those that end soon: once each."""
    near = Membership.objects.filter(user__is_active=True, ends_at__lte=now + WARNS).select_related("user")
    for row in near:
        if row.ends_at is not None and row.ends_at <= now:
            _end(row.user)
        elif row.warned_at is None and Membership.objects.filter(pk=row.pk, warned_at=None).update(warned_at=now):
            _warn(row)


def _end(user: User) -> None:
    """By the switch that an admin uses, and not of the last admin: then nobody could give accounts any more."""
    try:
        with accounts.administered():
            fresh = get_user_model().objects.select_for_update(no_key=True).get(pk=user.pk)
            fresh.is_active = False
            fresh.save(update_fields=["is_active"])  # ends sessions and tokens (accounts.py)
            audit.record("", "person-ended", user.get_username())
    except Problem as problem:
        log.warning("the account %s does not end: %s", user.get_username(), problem.message)


def _warn(row: Membership) -> None:
    if not settings.EMAIL_HOST or not row.user.email or row.ends_at is None:
        return  # pages tell it, too
    text = (
        f"Your account {row.user.get_username()} ends on {row.ends_at:%Y-%m-%d %H:%M} UTC. After that you cannot sign "
        "in, and your tokens end. Ask an admin if you need it for longer."
    )
    try:
        send_mail("Your gpushare account ends soon", text, None, [row.user.email])
    except (OSError, ValueError) as error:
        log.warning("the mail about the end of the account %s was not sent: %s", row.user.get_username(), error)
