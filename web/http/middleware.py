"""What every request passes: it is noted where it came from, for the audit log, and a NUL character stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from web import audit
from web.errors import invalid

Respond = Callable[[HttpRequest], HttpResponseBase]


def remember_origin(get_response: Respond) -> Respond:
    def respond(request: HttpRequest) -> HttpResponseBase:
        with audit.origin(str(request.META.get("REMOTE_ADDR") or "")):
            return get_response(request)

    return respond


def refuse_nul(get_response: Respond) -> Respond:
    """Answers 400 to a NUL character. PostgreSQL can neither store nor look for one, and no person types one.

    In one place for the pages, the admin site and whatever else reads a form or an address, since each text that one
    of them forgot would be a 500. In front of the sessions, whose key comes out of a cookie.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        if not any("\0" in text for text in _texts(request)):
            return get_response(request)
        problem = invalid("The request contains a NUL character, which is not allowed. Take it out and try again.")
        if _is_rest(request):
            return JsonResponse(problem.as_dict(), status=problem.status)
        return HttpResponse(problem.message, "text/plain; charset=utf-8", problem.status)

    return respond


class SocketsRefuseNul:
    """The same for WebSockets: their handshake looks for a session, too. Around all that reads the cookie."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if any(b"\0" in value for _, value in scope["headers"]):
            await receive()  # the handshake; closed before it is accepted, it is answered with 403
            await send({"type": "websocket.close"})
        else:
            await self._application(scope, receive, send)


def _texts(request: HttpRequest) -> Iterator[str]:
    yield request.path
    yield from request.COOKIES.values()
    if not _is_rest(request):  # REST judges query and body itself, by field; asking for a form would use up the body
        for given in (request.GET, request.POST):
            for name, values in given.lists():
                yield name
                yield from values


def _is_rest(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")
