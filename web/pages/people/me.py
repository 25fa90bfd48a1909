"""Me: what I may use and what of it is in use, my containers, my week, my tokens, my password, how it looks."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from web.errors import Problem, invalid, not_found
from web.history import reports
from web.models import Scope, SshKey, Token
from web.pages import notifications, table
from web.pages.frame import host_of, page_view, person, post_view, show
from web.pages.people import limits
from web.people import passwords, ssh_keys, tokens
from web.people.roles import groups_besides_role
from web.spec.inside import mounts

LASTS = {  # seconds, as a form sends them
    "86400": "a day",
    "604800": "a week",
    "2592000": "30 days",
    "7776000": "90 days",
    "31536000": "a year",
    "": "until it is ended",
}


@never_cache
@page_view
def page(request: HttpRequest) -> HttpResponse:
    return _page(request)


def _page(request: HttpRequest, problem: Problem | None = None) -> HttpResponse:
    user, now = person(request), timezone.now()
    week = reports.report(now - reports.WEEK, now, "user", user.get_username()).total.as_dict()
    context = {
        "week": week,
        "limits": limits.in_force(user, limits.usage(user, week["vram_gib_hours"])),
        "page": table.page(user, QueryDict("mine=1")),
        "roots": mounts.roots_of(user.get_username()),
        "groups": sorted(groups_besides_role(user)),
        "place": passwords.place(user),
        "problem": problem,
        **notifications.wishes(user),
        **_tokens(request),
        **_keys(request),
    }
    return show(request, "people/me.html", context, status=problem.status if problem else 200)


def _tokens(request: HttpRequest) -> dict[str, Any]:
    return {
        "tokens": Token.objects.filter(user=person(request)),
        "lasts": LASTS.items(),
        "scopes": {Scope.WRITE: "all my rights", Scope.READ: "read only"}.items(),
        "now": timezone.now(),
    }


@never_cache
@post_view
def make_token(request: HttpRequest) -> HttpResponse:
    """The list of tokens with the new one's key, which is shown this once."""
    seconds = request.POST.get("expires_in", "")
    try:
        if seconds and not (seconds.isdecimal() and seconds.isascii() and len(seconds) < 12):
            raise invalid("This has to be a number of seconds.", "expires_in")
        asked = {
            "name": request.POST.get("name", ""),
            "scope": request.POST.get("scope", Scope.WRITE),
            "expires_in": int(seconds) if seconds else None,
        }
        made, key = tokens.give(person(request), asked)
    except Problem as problem:
        return render(request, "people/tokens.html", _tokens(request) | {"problem": problem, "typed": request.POST})
    return render(request, "people/tokens.html", _tokens(request) | {"key": key, "made": made})


@never_cache
@post_view
def end_token(request: HttpRequest, pk: int) -> HttpResponse:
    token = Token.objects.filter(user=person(request), pk=pk).first()
    if token is None:
        problem = not_found("That token has been ended already.")
        return render(request, "people/tokens.html", _tokens(request) | {"problem": problem})
    tokens.end(person(request), token)
    return render(request, "people/tokens.html", _tokens(request) | {"ended": token})


def _keys(request: HttpRequest) -> dict[str, Any]:
    return {
        "ssh_keys": SshKey.objects.filter(user=person(request)),
        "ssh_port": settings.GPUSHARE_SSH[1] if settings.GPUSHARE_SSH else None,
        "ssh_host": host_of(request),
        "host_fingerprint": ssh_keys.host_fingerprint(),
    }


@never_cache
@post_view
def add_key(request: HttpRequest) -> HttpResponse:
    try:
        asked = {name: request.POST.get(name, "") for name in ("key", "name")}
        added = ssh_keys.add(person(request), asked)
    except Problem as problem:
        return render(request, "people/ssh_keys.html", _keys(request) | {"problem": problem, "typed": request.POST})
    return render(request, "people/ssh_keys.html", _keys(request) | {"added": added})


@never_cache
@post_view
def remove_key(request: HttpRequest, pk: int) -> HttpResponse:
    key = SshKey.objects.filter(user=person(request), pk=pk).first()
    if key is None:
        problem = not_found("That key has been removed already.")
        return render(request, "people/ssh_keys.html", _keys(request) | {"problem": problem})
    ssh_keys.remove(person(request), key)
    return render(request, "people/ssh_keys.html", _keys(request) | {"removed": key})


@sensitive_post_parameters()
@never_cache
@post_view
def password(request: HttpRequest) -> HttpResponse:
    given = {name: request.POST.get(name, "") for name in ("old", "new", "again")}
    try:
        if given["new"] != given["again"]:
            raise invalid("The two passwords differ. Type the new password twice.", "again")
        passwords.change(request, person(request), given["old"], given["new"])
    except Problem as problem:
        return _page(request, problem)
    messages.success(request, "Your password is changed. Your other sessions are signed out.")
    return redirect("me")
