"""The queue: who waits, in order, and why; put into another order by operators, its policy set by admins.

And the launches that begin later."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from web.models import Container, Node, Planned
from web.pages.frame import action_view, answer, page_view, person, refresh, show
from web.people.roles import Deed, rights_of
from web.services import planning, steering
from web.spec.written import number

PER_PAGE = 50
ENDED = 20


@page_view
def deciding(request: HttpRequest) -> HttpResponse:
    """Every policy in its own words, and which one is in force."""
    return show(request, "deciding.html", {"node": Node.here()})


@page_view
def queue(request: HttpRequest) -> HttpResponse:
    node = Node.here()
    rights = rights_of(person(request))
    context = _planned(request) | {
        "may_order": rights.may(Deed.ORDER_QUEUE),
        "may_set_policy": rights.may(Deed.SET_POLICY),
        "policy": node.policy if node else "",
        "policies": node.policies if node else [],
    }
    return show(request, "queue.html", context)


def _planned(request: HttpRequest) -> dict[str, Any]:
    """A page of the planned launches, in the order in which they would start, and those that ended last."""
    rows = Planned.objects.select_related("owner", "node").defer("values", "spec")
    page = Paginator(rows.open().in_order(), PER_PAGE).get_page(request.GET.get("page"))
    ended = list(rows.exclude(finished_at=None).order_by("-finished_at", "pk")[:ENDED])
    steers, several = planning.steers(person(request)), Node.several()
    return {
        "planned": page,
        "ended": ended,
        "steered": {each.pk for each in (*page.object_list, *ended) if steers(each)},
        "several": several,
        "columns": f"#Place|Name|Owner|{'Node|' * several}#Needs|#Runs done|State|Waits for|Change",
    }


@action_view
def steer(request: HttpRequest, pk: UUID, action: str) -> HttpResponse:
    """`action`: hold, release, cancel, again, or edit, with another `at_once`. Done: the page anew, which says so."""
    planned = get_object_or_404(Planned.objects.select_related("owner"), pk=pk)
    user, name = person(request), planned.name
    deeds: dict[str, tuple[str, Callable[[], Any]]] = {
        "hold": (f"{name} is held.", lambda: planning.hold(user, planned)),
        "release": (f"{name} is released.", lambda: planning.release(user, planned)),
        "cancel": (f"{name} is cancelled. Its running containers continue.", lambda: planning.cancel(user, planned)),
        "again": (f"{name} is planned once more.", lambda: planning.again(user, planned)),
        "edit": (
            f"{name} is changed.",
            lambda: planning.edit(user, planned, at_once=number(int, request.POST.get("at_once", ""), "at_once")),
        ),
    }
    if action not in deeds:
        raise Http404
    said, do = deeds[action]
    do()
    return refresh(request, said)


@action_view
def reorder(request: HttpRequest) -> HttpResponse:
    """The containers in their new order, all of those that wait."""
    undo = queue_as_it_is()
    ids = [pk for text in request.POST.getlist("id") for pk in text.split(",")]
    return answer(request, steering.reorder(person(request), ids), undo=undo)


def queue_as_it_is() -> dict[str, Any]:
    """The button that puts everybody back to where they stand now."""
    order = [str(pk) for pk in Container.objects.waiting().values_list("pk", flat=True)]
    return {"act": "reorder", "id": "queue", "fields": {"id": ",".join(order)}}


@action_view
def policy(request: HttpRequest) -> HttpResponse:
    node = Node.here()
    undo = {"act": "policy", "id": "queue", "fields": {"policy": node.policy}} if node else None
    return answer(request, steering.set_policy(person(request), request.POST.get("policy", "")), undo=undo)
