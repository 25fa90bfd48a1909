"""Remembers where a request came from, for the audit log."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from web import audit

Respond = Callable[[HttpRequest], HttpResponseBase]


def remember_origin(get_response: Respond) -> Respond:
    def respond(request: HttpRequest) -> HttpResponseBase:
        with audit.origin(str(request.META.get("REMOTE_ADDR") or "")):
            return get_response(request)

    return respond
