"""The hosts of the appliance, for admins: one more is invited, one is drained, labelled, removed. The rules are
web/services/nodes.py's."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.paginator import Paginator
from django.db.models import Count, F, Q, Sum
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect

from web.errors import Problem, invalid
from web.models import Container, Invitation, Node
from web.pages.frame import person, show
from web.pages.people.people import managed
from web.services import nodes as services
from web.services import steering

PER_PAGE = 50


@managed
def nodes(request: HttpRequest) -> HttpResponse:
    """All of them; POST invites one more."""
    problem, invited = None, {}
    if request.method == "POST":
        name = request.POST.get("name", "").strip()
        try:
            invited = {"name": name, "command": services.invite(person(request), name)}
        except Problem as refused:
            problem = refused
    q = request.GET.get("q", "").strip()[:100]
    listed = Node.objects.listed()
    found = listed.filter(name__icontains=q) if q else listed
    # Away first: those somebody may have to look at.
    page = Paginator(_counted(found).order_by(F("seen_at").asc(nulls_first=True), "name"), PER_PAGE)
    context = {
        "q": q,
        "page": page.get_page(request.GET.get("page")),
        "invited": invited,
        "open": Invitation.objects.good().order_by("name"),
        "problem": problem,
        "typed": request.POST if problem else {},
    }
    return show(request, "nodes.html", context, status=problem.status if problem else 200)


@managed
def one(request: HttpRequest, name: str) -> HttpResponse:
    """A node. POST changes it (`do`: drain, undrain, label, unlabel or remove), or a card of it (`gpu`: its UUID)."""
    node = _counted(Node.objects.listed().filter(name=name)).first()
    if node is None:
        raise Http404
    problem = None
    if request.method == "POST":
        try:
            message = _do(person(request), node, request.POST)
            messages.success(request, message)
            return redirect("nodes_page") if request.POST.get("do") == "remove" else redirect("node_page", name)
        except Problem as refused:
            problem = refused
    live = Container.objects.live().filter(node=node).select_related("owner").order_by("name")
    context = {
        "node": node,
        "labels": sorted(node.labels.items()),
        "cards": node.gpus.filter(present=True).order_by("index"),
        "containers": live[:PER_PAGE],
        "count": live.count(),
        "problem": problem,
        "typed": request.POST if problem else {},
        "did": request.POST.get("do", ""),
    }
    return show(request, "node.html", context, status=problem.status if problem else 200)


def _do(actor: User, node: Node, form: QueryDict) -> str:
    """What the form asks for; what was done, as a sentence. Raises Problem, or Http404 for what no form asks."""
    name, label = node.name, form.get("label", "").strip()
    if "gpu" in form:
        return _do_to_card(actor, node, form)
    match form.get("do"):
        case "drain":
            services.drain(actor, name, form.get("note", "")[:500])
            return f"{name} takes no new launches from now on. Its running and waiting containers continue."
        case "undrain":
            services.undrain(actor, name)
            return f"{name} takes launches again."
        case "label":
            value = form.get("value", "").strip()
            if not value:
                raise invalid("A label has a value: rack = a.", "value")
            services.label(actor, name, {label: value})
            return f"{name} has the label {label}={value}."
        case "unlabel":
            services.label(actor, name, {label: None})
            return f"The label {label} of {name} is removed."
        case "remove":
            services.remove(actor, name, force="force" in form)
            return f"{name} is removed, and so are its rights. Its history stays."
    raise Http404


def _do_to_card(actor: User, node: Node, form: QueryDict) -> str:
    card = node.gpus.filter(uuid=form["gpu"]).first()
    if card is None or form.get("do") not in ("drain", "undrain"):
        raise Http404
    change = steering.drain_gpu if form["do"] == "drain" else steering.undrain_gpu
    command = steering.wait_for(change(actor, card.uuid, form.get("note", "")[:500]))
    steering.settled(command)
    return command.text


def _counted(found: Any) -> Any:
    there = Q(gpus__present=True)
    out = Count("gpus", filter=there & ~Q(gpus__drained_at=None))
    return found.annotate(cards=Count("gpus", filter=there), out=out, capacity=Sum("gpus__capacity", filter=there))
