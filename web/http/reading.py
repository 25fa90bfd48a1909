"""Reading a container's output, for REST and pages: who may, how many at once, and for how long."""

import socket
from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest, StreamingHttpResponse

from web.budgets import Place
from web.console import output, pods, relayed
from web.errors import Problem
from web.models import Container
from web.people import visitor
from web.people.roles import require_steering
from web.relay.reaching import Kind, elsewhere, reach_now


class Lasting(StreamingHttpResponse):
    """A stream that has a place of its own, as long as it is under way."""

    def __init__(self, place: Place, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._place = place

    def close(self) -> None:
        super().close()
        self._place.free()


def answer(request: HttpRequest, container: Container, *, follow: bool, tail: int | None) -> StreamingHttpResponse:
    """The output as it is, or as it comes, which ends when who reads it no longer may. Raises Problem."""

    def require(user: User) -> None:
        require_steering(user, container, "read the output of")

    user = cast("User", request.user)  # views that call this ask for signing in
    require(user)
    if container.is_of_pods:
        raise Problem("not_supported", _elsewhere(container), 400)
    kind = (
        "text/plain; charset=utf-8"  # and nothing else, whatever a program printed: nosniff is set for every response
    )
    place = output.place_to_follow(user.pk) if follow else None
    connection = _begun(container, tail, follow=follow)
    if place is None:
        return StreamingHttpResponse(relayed.written(container, tail, connection), content_type=kind)
    if opened := getattr(request, "scope", {}).get("gpushare.opened"):
        opened.end()  # it lasts, and has its own budget
    lines = relayed.followed(container, visitor.again(request, require), tail, connection)
    return Lasting(place, lines, content_type=kind)


def _elsewhere(container: Container) -> str:
    ways = [each.link or each.command for each in pods.outputs(container)]
    return " ".join(["The cluster has the output of its pods.", *(f"It is there: {way}" for way in ways[:1])])


def _begun(container: Container, tail: int | None, *, follow: bool) -> socket.socket | None:
    """A connection to the host that has its output, which is to send it; None: that is this one. Raises Problem."""
    node = None if output.is_here(container.pk) else elsewhere(container)
    if node is None:
        return None
    connection = reach_now(node, Kind.OUTPUT)
    relayed.begin(connection, container, tail, follow=follow)
    return connection
