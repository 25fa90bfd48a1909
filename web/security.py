"""The Content-Security-Policy of every page: our own files and nothing else, nothing inline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

Respond = Callable[[HttpRequest], HttpResponseBase]
RespondLater = Callable[[HttpRequest], Awaitable[HttpResponseBase]]

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


@sync_and_async_middleware
def content_security_policy(get_response: Respond | RespondLater) -> Respond | RespondLater:
    """Adds the policy to every response that does not bring its own."""
    if iscoroutinefunction(get_response):

        async def respond_later(request: HttpRequest) -> HttpResponseBase:
            response: HttpResponseBase = await get_response(request)
            response.headers.setdefault("Content-Security-Policy", POLICY)
            return response

        return respond_later

    def respond(request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = get_response(request)  # type: ignore[assignment]
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response

    return respond
