"""The queue: who waits, in order, and why; put into another order by operators, its policy set by admins."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_POST

from web.errors import Problem
from web.models import Container, Node
from web.pages.frame import answer, person, refusal, show
from web.people.roles import Deed, rights_of
from web.services import steering


@login_required
@require_GET
def queue(request: HttpRequest) -> HttpResponse:
    node = Node.here()
    rights = rights_of(person(request))
    context = {
        "may_order": rights.may(Deed.ORDER_QUEUE),
        "may_set_policy": rights.may(Deed.SET_POLICY),
        "policy": node.policy if node else "",
        "policies": node.policies if node else [],
    }
    return show(request, "queue.html", context)


@login_required
@require_POST
def reorder(request: HttpRequest) -> HttpResponse:
    """The containers in their new order, all of those that wait."""
    undo = queue_as_it_is()
    ids = [pk for text in request.POST.getlist("id") for pk in text.split(",")]
    try:
        return answer(request, steering.reorder(person(request), ids), undo=undo)
    except Problem as problem:
        return refusal(request, problem)


def queue_as_it_is() -> dict[str, Any]:
    """The button that puts everybody back to where they stand now."""
    order = [str(pk) for pk in Container.objects.waiting().values_list("pk", flat=True)]
    return {"act": "reorder", "id": "queue", "fields": {"id": ",".join(order)}}


@login_required
@require_POST
def policy(request: HttpRequest) -> HttpResponse:
    node = Node.here()
    undo = {"act": "policy", "id": "queue", "fields": {"policy": node.policy}} if node else None
    try:
        return answer(request, steering.set_policy(person(request), request.POST.get("policy", "")), undo=undo)
    except Problem as problem:
        return refusal(request, problem)
