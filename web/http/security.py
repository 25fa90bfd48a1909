"""What browsers are sent, and asked: the Content-Security-Policy of every page (our own files and nothing else, nothing
inline), and whether a page of another site asks."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

Respond = Callable[[HttpRequest], HttpResponseBase]

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # the admin site's icons are data: in part
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)


def content_security_policy(get_response: Respond) -> Respond:
    """Adds the policy to every response that does not bring its own."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return respond


def refuse_other_sites(get_response: Respond) -> Respond:
    """Answers 403 to what a page elsewhere asks for with somebody's session; it may lead here, as a link does.

    Such a page can read no answer anyway. But an application in a container may be of the same site (GPUSHARE_APPS): a
    browser then sends the session along, as SameSite means sites.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        headers = request.headers
        is_elsewhere = headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
        is_link = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")) == ("navigate", "document")
        if is_elsewhere and not is_link and settings.SESSION_COOKIE_NAME in request.COOKIES:
            text = "A page of another site may not request this.\n"
            return HttpResponse(text, "text/plain; charset=utf-8", 403, headers={"Content-Security-Policy": POLICY})
        return get_response(request)

    return respond
