"""What stands before every WebSocket: an address that exists, text that can be stored, our own origin, room for it.

Whoever is refused is answered in the handshake, like any request: nothing is looked up for them. So many a second come
from one address, out of the same budget as requests of nobody yet: for each, a session or a token is looked for.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from asgiref.sync import sync_to_async
from django.conf import settings
from django.http.cookie import parse_cookie
from django.http.request import split_domain_port, validate_host
from django.urls import URLPattern

from web.budgets import Pace, Place, Places, address_key, too_many
from web.errors import Problem, forbidden, invalid, not_found
from web.http.gate import Application, Receive, Send, count
from web.texts import fault_of

MESSAGES_A_SECOND = 1000  # of a connection: a console acknowledges each piece of output
DEFAULT_PORTS = {"http": "80", "https": "443"}

_of_addresses = Places("websockets_of_an_address", "websockets_in_all")


class Sockets:
    """An ASGI application around `app`, which has these `routes`."""

    def __init__(self, app: Application, routes: Sequence[URLPattern]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            place = await self._admit(scope)
        except Problem as problem:
            await receive()  # the handshake
            await _deny(scope, send, problem)
            return
        try:
            await self._app(scope, _paced(receive), send)
        finally:
            place.free()

    async def _admit(self, scope: Mapping[str, Any]) -> Place:
        headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
        path = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        if not any(route.pattern.match(path) for route in self._routes):
            raise not_found("There is no WebSocket at this address.")
        cookies = [parse_cookie(value.decode("latin-1")) for name, value in headers if name == b"cookie"]
        if fault := fault_of(cookies):
            raise invalid(f"The request contains {fault}, which is not allowed.")
        texts = {name: value.decode("latin-1") for name, value in headers}
        origin, scheme = texts.get(b"origin", ""), scope.get("scheme", "ws")
        if not is_own(origin, texts.get(b"host", ""), scheme):
            if scheme == "wss" and origin.startswith("http:"):
                address = settings.GPUSHARE_PUBLIC_URL or "https://ADDRESS"
                raise forbidden(
                    f"This was asked by http; the appliance takes it by https only: gpushare login {address}"
                )
            raise forbidden("Only pages of this appliance itself may open this.")
        address = address_key(str((scope.get("client") or ("",))[0]))
        await sync_to_async(count)(scope, None, address)  # in a thread: Redis counts, where there is one
        place = _of_addresses.take(address)
        if place is None:
            raise too_many("Too many WebSockets are open, from your address or in all. Close one.", 5)
        return place


def is_own(origin: str, host: str, scheme: str) -> bool:
    """Whether a page of this origin is one of ours: the scheme, the name and the port are those that were asked.

    The port as well: to a browser, what a container publishes on another port of this host is the same site, and it
    sends our cookies there and back.
    """
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    try:
        found = urlsplit(origin)
        page = found.hostname, str(found.port or DEFAULT_PORTS[found.scheme])
    except (ValueError, KeyError):
        return False
    name, port = split_domain_port(host)
    if not validate_host(name, settings.ALLOWED_HOSTS) or (scheme == "wss" and found.scheme != "https"):
        return False
    return page == (name.strip("[]"), port or DEFAULT_PORTS[found.scheme])


def _paced(receive: Receive) -> Receive:
    pace = Pace(MESSAGES_A_SECOND)

    async def wait_and_receive() -> Mapping[str, Any]:
        message = await receive()
        if message["type"] == "websocket.receive":
            await pace.keep()
        return message

    return wait_and_receive


async def _deny(scope: Mapping[str, Any], send: Send, problem: Problem) -> None:
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close"})  # before it is accepted: the server answers with 403
        return
    body = f"{problem.message}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    if problem.retry_after:
        headers.append((b"retry-after", problem.retry_after.encode()))
    await send({"type": "websocket.http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
