"""Where links lead: one that signs in (web/people/links.py), an invitation (web/people/memberships.py), and an
application at a host name of its own (web/door/entering.py), which has sent this browser here and gets it back."""

from urllib.parse import urlencode

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from web.door import entering
from web.errors import Problem, invalid
from web.pages.frame import page_view, person
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
            raise invalid("The two passwords differ. Type the password twice.", "again")
        memberships.use(request, key, password)
    except Problem as problem:
        return render(request, "join.html", {"problem": problem, "key": key}, status=problem.status)
    return redirect("dashboard")


@never_cache
@page_view
def open_app(request: HttpRequest) -> HttpResponse:
    """Not a redirect: where somebody has just signed in, the policy for forms would stop that on its way elsewhere."""
    if not settings.GPUSHARE_APPS:
        raise Http404
    given = request.GET
    try:
        container, port = entering.named(given.get("at", ""))
        session, browser = request.session.session_key or "", given.get("browser", "")[:64]
        code = entering.give_code(person(request), session, container, port, browser)
    except Problem as problem:
        context = {"title": "Not opened", "problem": problem.message}
        return render(request, "opening.html", context, status=problem.status)
    asked = urlencode({"code": code, "to": given.get("to", "/")})
    url = f"{entering.address(container, port)}{entering.ENTER}?{asked}"
    return render(request, "opening.html", {"title": f"Opening {container.name}", "name": container.name, "url": url})
