"""What every request passes: where it came from is noted for the audit log; text that nothing can hold stops it, and so
do too many of them."""

from collections.abc import Callable, Iterator
from contextlib import suppress

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import reverse

from web import audit
from web.budgets import address_key, spend, too_many
from web.errors import Problem, invalid
from web.http.gate import count, rendered
from web.people import tokens
from web.texts import fault_of

Respond = Callable[[HttpRequest], HttpResponseBase]


def remember_origin(get_response: Respond) -> Respond:
    def respond(request: HttpRequest) -> HttpResponseBase:
        with audit.origin(str(request.META.get("REMOTE_ADDR") or "")):
            return get_response(request)

    return respond


def refuse_bad_text(get_response: Respond) -> Respond:
    """Answers 400 to text that cannot be stored or looked for (web/texts.py).

    In one place for the pages, the admin site and whatever else reads a form or an address, since each text that one
    of them forgot would be a 500. In front of the sessions, whose key comes out of a cookie.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        fault = next((fault for text in _texts(request) if (fault := fault_of(text))), "")
        if not fault:
            return get_response(request)
        problem = invalid(f"The request contains {fault}, which is not allowed. Take it out and try again.")
        if is_rest(request):
            return JsonResponse(problem.as_dict(), status=problem.status)
        return HttpResponse(problem.message, "text/plain; charset=utf-8", problem.status)

    return respond


def keep_budgets(get_response: Respond) -> Respond:
    """How many requests somebody may send, a second and at once: by user, and until one is known by address.

    Behind the sessions. REST and the pages share it, so that nobody has two budgets.
    """
    sign_ins = {
        reverse("login"),
        reverse("admin:login"),
        reverse("sign-in"),
        reverse("enter"),
        reverse("join"),
        reverse("node-join"),
    }
    # Where a provider lets people in, looking there is the attempt: for each a session is kept.
    begins = {reverse("oidc_authentication_init")} if settings.OIDC else set()

    def respond(request: HttpRequest) -> HttpResponseBase:
        try:
            posts = request.method == "POST" and request.path in sign_ins
            _spend(request, signs_in=posts or request.path in begins)
        except Problem as problem:
            kind, content = rendered(request.path, problem)
            return HttpResponse(content, kind, problem.status, headers={"Retry-After": problem.retry_after})
        return get_response(request)

    return respond


def redirect_signed_out(get_response: Respond) -> Respond:
    """A part of a page that is asked for after the session has ended reloads the page, which leads to the sign-in.

    The redirect itself would be followed without being seen, and draw the sign-in page into a panel.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        to_sign_in = response.headers.get("Location", "").split("?")[0] == reverse("login")
        if response.status_code == 302 and to_sign_in and "HX-Request" in request.headers:
            return HttpResponse(status=401, headers={"HX-Refresh": "true"})
        return response

    return respond


def _spend(request: HttpRequest, *, signs_in: bool) -> None:
    """Counts this request in the budgets of whoever sends it. Raises Problem if one is used up."""
    user = user_of(request)
    address = address_key(str(request.META.get("REMOTE_ADDR") or ""))
    count(getattr(request, "scope", {}), user, address)
    if signs_in and not spend("sign_ins_a_minute", f"address:{address}", 60):
        raise too_many("Too many attempts to sign in from your address. Try again in a minute.", 60)


def user_of(request: HttpRequest) -> int | None:
    """The key of whoever asks, if anybody. A token that is found is kept with the request, for REST."""
    header = str(request.META.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
    with suppress(Problem, DatabaseError):  # what is wrong, the view says
        if header:
            token = request.token = tokens.of_header(header)  # type: ignore[attr-defined]
            return int(token.user.pk) if token else None
        if settings.SESSION_COOKIE_NAME in request.COOKIES and request.user.is_authenticated:
            return int(request.user.pk)
    return None


def _texts(request: HttpRequest) -> Iterator[str]:
    yield request.path
    yield from request.COOKIES.values()
    if not is_rest(request):  # REST judges query and body itself, by field; asking for a form would use up the body
        for given in (request.GET, request.POST):
            for name, values in given.lists():
                yield name
                yield from values


def is_rest(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")
