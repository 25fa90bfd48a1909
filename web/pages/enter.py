"""Where links lead: one that signs in (web/people/links.py), and an invitation (web/people/memberships.py)."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from web.errors import Problem, invalid
from web.people import links, memberships


@never_cache
@sensitive_post_parameters("key")
@require_http_methods(["GET", "POST"])
def enter(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return render(request, "enter.html")
    try:
        links.use(request, request.POST.get("key", ""))
    except Problem as problem:
        return render(request, "enter.html", {"problem": problem.message}, status=problem.status)
    return redirect("dashboard")


@never_cache
@sensitive_post_parameters("key", "password", "again")
@require_http_methods(["GET", "POST"])
def join(request: HttpRequest) -> HttpResponse:
    """Whoever is invited chooses a password, and is signed in."""
    if request.method == "GET":
        return render(request, "join.html")
    key, password = request.POST.get("key", ""), request.POST.get("password", "")
    try:
        if password != request.POST.get("again", ""):
            raise invalid("The two are not the same. Type the password twice.", "again")
        memberships.use(request, key, password)
    except Problem as problem:
        return render(request, "join.html", {"problem": problem, "key": key}, status=problem.status)
    return redirect("dashboard")
