"""Who opens an application with a browser: at its own host name, after the dashboard has said who they are.

The dashboard gives that browser a code, which is good once, for a minute, and together with what the door has given the
same browser before: so nobody can have somebody else enter as themselves. The door makes a cookie of it. Both are kept
as hashes, and lead to one port of one container; the session at the dashboard is asked again and again (`Guest.look`).
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from web import audit
from web.console.frames import HIGHEST_PORT
from web.errors import Problem, not_found
from web.models import AppSession, Container
from web.people.roles import require_opening
from web.people.tokens import digest
from web.people.visitor import user_of_session

if TYPE_CHECKING:
    from django.contrib.auth.models import User

ENTER = "/.gpushare/enter"  # at each of these host names: what the dashboard sends a browser to
CODE_LASTS = timedelta(minutes=1)
MOST = 32  # browsers of one person at one application; the oldest has to sign in again
SPENT = "This link has been used already, is older than a minute, or was made for another browser."
_LABEL = re.compile(r"[a-z0-9-]+-([0-9a-f]{8})-([1-9][0-9]{0,4})")


def label(container: Container, port: int) -> str:
    """The first part of the host name."""
    return f"{settings.GPUSHARE_APP_LABEL(container.name, str(container.pk))}-{port}"


def address(container: Container, port: int) -> str:
    return f"https://{label(container, port)}.{settings.GPUSHARE_APPS}"


def named(name: str) -> tuple[Container, int]:
    """The container that lives, and the port, of this first part of a host name. Raises Problem."""
    if found := _LABEL.fullmatch(name):
        first, port = found[1], int(found[2])
        least, last = (UUID(first + digit * 24) for digit in "0f")
        container = _whole().live().filter(pk__gte=least, pk__lte=last).first()
        if container and port <= HIGHEST_PORT and label(container, port) == name:
            return container, port
    raise not_found("No container that runs has an application at this address. It may have ended.")


def give_code(user: User, session: str, container: Container, port: int, browser: str) -> str:
    """`session`: the key of theirs at the dashboard. `browser`: what the door has given it, a hash. Raises Problem."""
    require_opening(user, container, port)
    AppSession.objects.filter(expires_at__lte=timezone.now()).delete()
    code = secrets.token_urlsafe(32)
    AppSession.objects.create(
        user=user, container=container, port=port, session=session,
        digest=digest(code), browser=browser, expires_at=timezone.now() + CODE_LASTS,
    )  # fmt: skip
    return code


def enter(code: str, browser: str, host: str, where: str) -> str:
    """The key of a cookie for this host name. `where`: from which network address. Raises Problem; of those who use one
    code at once, for all but one."""
    codes = AppSession.objects.filter(digest=digest(code), browser=digest(browser), expires_at__gt=timezone.now())
    found = codes.select_related("user", "container").first() if browser else None
    key = secrets.token_urlsafe(32)
    lasts = timezone.now() + timedelta(seconds=settings.SESSION_COOKIE_AGE)
    if (
        found is None
        or address(found.container, found.port) != host
        or not codes.update(digest=digest(key), browser="", expires_at=lasts)
    ):
        raise Problem("forbidden", SPENT, 403)
    its = AppSession.objects.filter(user=found.user, container=found.container, port=found.port, browser="")
    its.exclude(pk__in=list(its.order_by("-pk")[:MOST].values_list("pk", flat=True))).delete()
    with audit.origin(where):
        detail = {"name": found.container.name, "port": found.port}
        audit.record(found.user.get_username(), "app-opened", found.container.pk, **detail)
    return key


@dataclass
class Guest:
    """One cookie's: whose browser it is, and to which application it leads."""

    key: int
    session: str
    user: User
    container: Container
    port: int

    def look(self) -> None:
        """Whether they still may. Raises Problem."""
        user = user_of_session(self.session)
        if user is None or user.pk != self.user.pk or not AppSession.objects.filter(pk=self.key).exists():
            raise Problem("not_authenticated", "Sign in again.", 401)
        container = _whole().filter(pk=self.container.pk).first()
        if container is None or container.finished_at:
            raise Problem("container_ended", "The container has ended.", 404)
        require_opening(user, container, self.port)
        self.user, self.container = user, container


def guest(cookie: str, host: str) -> Guest | None:
    """Whose cookie this is, at this host name; None: nobody's. Whether they may enter, `look` says."""
    cookies = AppSession.objects.select_related("user", "container__owner", "container__node")
    found = cookies.filter(digest=digest(cookie), browser="", expires_at__gt=timezone.now()).first()
    if found is None or address(found.container, found.port) != host:
        return None
    return Guest(found.pk, found.session, found.user, found.container, found.port)


def _whole() -> Any:
    return Container.objects.select_related("owner", "node").annotate(named_node=F("node__name"))
