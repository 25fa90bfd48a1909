"""Remembers where a request came from, for the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.decorators import sync_and_async_middleware

from web import audit

Respond = Callable[[HttpRequest], HttpResponseBase]
RespondLater = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


@sync_and_async_middleware
def remember_origin(get_response: Respond | RespondLater) -> Respond | RespondLater:
    if iscoroutinefunction(get_response):

        async def respond_later(request: HttpRequest) -> HttpResponseBase:
            with audit.origin(_address(request)):
                response: HttpResponseBase = await get_response(request)
                return response

        return respond_later

    def respond(request: HttpRequest) -> HttpResponseBase:
        with audit.origin(_address(request)):
            return get_response(request)  # type: ignore[return-value]

    return respond


def _address(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR") or "")
