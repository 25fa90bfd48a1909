"""/metrics: what Prometheus scrapes (web/live/figures.py), for whoever has a token.

With GPUSHARE_METRICS=loopback also for programs of this host that come without one, but not through a proxy: a proxy
on this host brings strangers, and says so in a header.
"""

import ipaddress

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from web.errors import Problem
from web.live import figures, openmetrics
from web.people import tokens

FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP", "HTTP_VIA", "HTTP_X_FORWARDED_PROTO")


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    try:
        _let_in(request)
        return HttpResponse(openmetrics.text(figures.read()), openmetrics.KIND)
    except Problem as problem:
        answer = HttpResponse(problem.message, "text/plain; charset=utf-8", problem.status)
        if problem.status == 401:
            answer["WWW-Authenticate"] = "Token"
        return answer
    except DatabaseError as error:
        return HttpResponse(f"The database does not answer: {error}", "text/plain; charset=utf-8", 503)


def _let_in(request: HttpRequest) -> None:
    """Raises Problem 401."""
    header = str(request.META.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
    known = getattr(request, "token", None) or tokens.of_header(header)
    if known is None and not (settings.GPUSHARE_METRICS == "loopback" and _is_of_this_host(request)):
        raise Problem(
            "not_signed_in",
            "The metrics are for those with a token: send `Authorization: Token …`, one of a viewer is enough. "
            "GPUSHARE_METRICS=loopback also lets in programs of this host.",
            401,
        )


def _is_of_this_host(request: HttpRequest) -> bool:
    if any(header in request.META for header in FORWARDED):
        return False
    try:
        return ipaddress.ip_address(str(request.META.get("REMOTE_ADDR") or "")).is_loopback
    except ValueError:
        return False
