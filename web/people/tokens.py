"""Tokens: made, found, ended. The key has 256 random bits, so one fast hash keeps it; only passwords need slow ones."""

import hashlib
import secrets
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import DatabaseError, transaction
from django.db.models import Q
from django.utils import timezone

from web import audit
from web.errors import Problem, forbidden
from web.models import Scope, Token
from web.spec.people import TokenSpec

PREFIX = "gps_"  # lets secret scanners and people tell what it is


def make(user: User, name: str = "", scope: str = Scope.WRITE, expires_at: datetime | None = None) -> tuple[Token, str]:
    """A new token and its key. The key is not kept and cannot be shown again."""
    key = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        token = Token.objects.create(user=user, name=name, scope=scope, expires_at=expires_at, digest=digest(key))
        audit.record(user.get_username(), "token-made", token.pk, name=name, scope=scope, expires_at=_text(expires_at))
    return token, key


def give(user: User, asked: Any, by: Token | None = None) -> tuple[Token, str]:
    """The token that somebody asks for (a `TokenSpec`), and its key. `by` is the token that asks, if one does: it makes
    none that outlives itself. Raises Problem."""
    spec = TokenSpec.parse(asked)
    seconds = spec["expires_in"]
    if by is not None and by.expires_at is not None:
        left = (by.expires_at - timezone.now()).total_seconds()
        if seconds is None or seconds > left:
            raise forbidden("A token cannot create one that expires later than itself.", "expires_in")
    expires_at = timezone.now() + timedelta(seconds=seconds) if seconds is not None else None
    return make(user, spec["name"], spec["scope"], expires_at)


def end(user: User, token: Token) -> None:
    """Deletes a token; what was done with it stays in the audit log."""
    number = token.pk
    with transaction.atomic():
        token.delete()  # before the log, which is asked for last by whoever deletes its user, too
        audit.record(user.get_username(), "token-ended", number, name=token.name, of=token.user.get_username())


def find(key: str) -> Token:
    """The token with this key, noted as used. Raises Problem 401 if it is unknown or expired, or its user inactive."""
    token = Token.objects.select_related("user").filter(digest=digest(key)).first()
    if token is None:
        raise Problem("bad_token", "This token is not known. It may have been deleted; sign in again.", 401)
    now = timezone.now()
    if token.expires_at is not None and token.expires_at <= now:
        raise Problem("token_expired", f"This token expired on {token.expires_at:%Y-%m-%d %H:%M} UTC.", 401)
    if not token.user.is_active:
        raise Problem("user_inactive", "This account is disabled.", 401)
    # Once a minute is enough to see which tokens are in use, and spares a write a request.
    stale = Q(last_used_at=None) | Q(last_used_at__lt=now - timedelta(minutes=1))
    if token.last_used_at is None or now - token.last_used_at > timedelta(minutes=1):
        with suppress(DatabaseError):  # full or read-only: looking still has to work
            Token.objects.filter(stale, pk=token.pk).update(last_used_at=now)
    return token


def require_write(token: Token) -> None:
    if token.scope == Scope.READ:
        raise forbidden("This token is read-only.")


def of_header(header: bytes) -> Token | None:
    """The token of `Authorization: Token …`, or `Bearer …`; None if the header is something else's, or not there."""
    words = header.split()
    if not words or words[0].lower() not in (b"token", b"bearer"):
        return None
    if len(words) != 2:
        raise Problem("bad_token", 'The header has to be "Authorization: Token" and the token.', 401)
    return find(words[1].decode("latin-1"))


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _text(time: datetime | None) -> str | None:
    return time.isoformat() if time else None
