"""What every request passes: where it came from is noted for the audit log; text that nothing can hold stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.cookie import parse_cookie
from django.http.response import HttpResponseBase

from web import audit
from web.errors import invalid
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
        if _is_rest(request):
            return JsonResponse(problem.as_dict(), status=problem.status)
        return HttpResponse(problem.message, "text/plain; charset=utf-8", problem.status)

    return respond


class SocketsRefuseBadText:
    """The same for WebSockets: their handshake looks for a session, too. Around all that reads the cookie."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        cookies = [parse_cookie(value.decode("latin-1")) for name, value in scope["headers"] if name == b"cookie"]
        if fault_of([scope["path"], cookies]):
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
