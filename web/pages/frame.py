"""What every page has: its frame, who asks, and how an answer looks."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from web.errors import Problem
from web.live import snapshot
from web.models import Announcement, Command, Container
from web.pages.text import catalogue
from web.people import memberships
from web.people.roles import Deed, rights_of
from web.services import steering, warning

PAGES: tuple[tuple[str, str], ...] = (
    ("dashboard", "Overview"),
    ("queue_page", "Queue"),
    ("calendar", "Calendar"),
    ("incidents", "Incidents"),
    ("history", "History"),
    ("reports", "Reports"),
    ("fairness", "Fairness"),
)

LAUNCH = ("launch", "Launch")
FOR_ADMINS = (
    ("people", "People"),
    ("nodes_page", "Nodes"),
    ("audit", "Audit"),
    ("notifications_page", "Notifications"),
)
# Pages that are reached from one in the bar.
UNDER = {
    "person": "people",
    "group": "people",
    "deciding": "queue_page",
    "node_page": "nodes_page",
}


V = TypeVar("V", bound=Callable[..., HttpResponseBase])


def page_view(view: V) -> V:
    """For who is signed in, by GET."""
    return login_required(require_GET(view))


def post_view(view: V) -> V:
    """For who is signed in, by POST."""
    return login_required(require_POST(view))


def action_view(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """By POST, of a button; a Problem is answered as a toast."""

    @wraps(view)
    def refused(request: HttpRequest, *arguments: Any, **words: Any) -> HttpResponse:
        try:
            return view(request, *arguments, **words)
        except Problem as problem:
            return toast(request, "bad", problem.message)

    return post_view(refused)


def host_of(request: HttpRequest) -> str:
    """The name by which the browser knows this host, without a port."""
    return urlsplit(f"//{request.get_host()}").hostname or "localhost"


def show(request: HttpRequest, template: str, context: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
    """A whole page."""
    user = person(request)
    rights = rights_of(user)
    may_launch = rights.may(Deed.LAUNCH)
    manages = rights.may(Deed.MANAGE)
    text = catalogue()
    pages = (*PAGES[:1], *((LAUNCH,) if may_launch else ()), *PAGES[1:], *(FOR_ADMINS if manages else ()))
    here = (request.resolver_match.url_name if request.resolver_match else None) or ""
    frame = {
        "me": {"name": user.get_username(), "role": rights.role.group},
        "may_launch": may_launch,
        "navigation": [
            {"label": label, "url": reverse(name), "current": name == here, "above": name == UNDER.get(here)}
            for name, label in pages
        ],
        "text": text,
        "banners": _banners(text),
        "warnings": warning.warned(user),
        "ends_soon": memberships.ends_soon(user),
        "zone": _zone(),
        "announcements": Announcement.objects.current(timezone.now()),
    }
    return render(request, template, frame | (context or {}), status=status)


def _zone() -> str:
    """What times on pages are in: Europe/Berlin (UTC+01:00)."""
    zone, shift = str(timezone.get_current_timezone()), timezone.localtime().strftime("%z")
    return zone if zone == "UTC" else f"{zone} (UTC{shift[:3]}:{shift[3:]})"


def _banners(text: dict[str, str]) -> dict[str, str | bool]:
    """What is shown above the page from the start, or it would move when the live line (app.js) tells it."""
    now = snapshot.appliance()
    return {
        "scheduler": "" if now["alive"] else text["scheduler_silent"],
        "engine": text["engine_away"].format(error=now["error"]) if now["error"] else "",
        "simulated": now["simulated"],
    }


def person(request: HttpRequest) -> User:
    """Who asks, on a page that asks for signing in."""
    assert isinstance(request.user, User)
    return request.user


def container_or_404(pk: Any) -> Container:
    """One that exists or existed; only launches that never became anything are gone."""
    return get_object_or_404(Container.objects.select_related("owner", "node"), pk=pk)


def toast(
    request: HttpRequest, kind: str, message: str, undo: dict[str, Any] | None = None, about: str = ""
) -> HttpResponse:
    """An answer to an action: `kind` is good, warn or bad; `undo` {"act", "id", "fields"?}, a button that undoes."""
    return render(request, "parts/toast.html", {"kind": kind, "message": message, "undo": undo, "about": about})


def refresh(request: HttpRequest, said: str) -> HttpResponse:
    """The page anew, which says so."""
    messages.success(request, said)
    return HttpResponse(status=204, headers={"HX-Refresh": "true"})


def answer(request: HttpRequest, command: Command, undo: dict[str, Any] | None = None, about: str = "") -> HttpResponse:
    """What became of a command, in one sentence: the scheduler's, once it has one."""
    try:
        command = steering.wait_for(command)
        done = steering.settled(command)
    except Problem as problem:
        return toast(request, "bad", problem.message, about=about)
    return toast(request, "good" if done else "warn", command.text, undo if done else None, about)
