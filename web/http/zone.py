"""The time zone of pages: the reader's, as the browser names it in a cookie (static/gpushare/theme.js)."""

from collections.abc import Callable
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone

from web.http.middleware import is_rest

Respond = Callable[[HttpRequest], HttpResponseBase]


def show_local_times(get_response: Respond) -> Respond:
    """What templates write and forms read is local time. REST stays in UTC."""

    def respond(request: HttpRequest) -> HttpResponseBase:
        if is_rest(request):
            return get_response(request)
        with timezone.override(named(request.COOKIES.get("zone", ""))):
            return get_response(request)

    return respond


def named(name: str) -> tzinfo:
    """UTC where there is no zone of that name."""
    try:
        return ZoneInfo(name[:64])
    except (ValueError, LookupError, OSError):
        return UTC
