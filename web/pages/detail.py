"""One container: what it holds and held, its life, processes, events, output and settings."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from web.console import pods
from web.door import entering
from web.errors import Problem
from web.history import fairness, samples
from web.history.incidents import end_of
from web.history.life import stretches
from web.http import reading
from web.models import AllocationEvent, Claim, Container, Gpu, Node, State
from web.pages import table
from web.pages.frame import container_or_404, host_of, page_view, person, post_view, show
from web.pages.launch_form import text_of
from web.pages.text import EVENTS, STATES, catalogue
from web.people.roles import Deed, Rights, may_open, port_of, rights_of
from web.services import guests
from web.services.sharing import not_kept
from web.sizes import format_size
from web.spec import quotas
from web.spec.requests import asked_for
from web.templatetags.gpushare import duration
from web.times import seconds

EVENTS_PER_PAGE = 50
LAST_LINES = 8  # of the output, where the page shows how something ended


@page_view
def container(request: HttpRequest, pk: UUID) -> HttpResponse:
    found = container_or_404(pk)
    rights = rights_of(person(request))
    steers = rights.steers(found)
    claims = list(found.claims.select_related("gpu"))
    why = found.reason if found.finished_at else ""
    context = {
        "container": found,
        "state_label": STATES[found.state],
        "claims": claims,
        "other_cards": _other_cards(found, claims),
        "rates": _rates(found),
        "where": found.node_name if Node.several() else "",
        "cannot_swap": found.cannot_move or (found.node.cannot_swap if found.node else ""),
        "share_not_kept": not_kept(found),
        "processes": [process | {"gpu": claim.gpu.index} for claim in claims for process in claim.processes],
        "overhead": sum(claim.overhead for claim in claims) if any(claim.used for claim in claims) else "",
        "stretches": _stretches(found),
        "events": _events(found),
        "may_act": steers,
        "may_exec": steers and rights.may(Deed.EXEC),
        "ssh": f"ssh {found.name}@{host_of(request)} -p {settings.GPUSHARE_SSH[1]}" if settings.GPUSHARE_SSH else "",
        "app_url": _app_url(found, rights),
        **_guests(found, steers),
        "may_read": steers,  # output and environment may hold secrets
        "outputs": pods.outputs(found),
        "settings": _settings(found, steers),
        "quota": claims[0].quota if claims else quotas.asked(found.gpu_memory),
        "ended": seconds(found.finished_at),
        "ran": table.ran(found),
        "how_it_ended": end_of(found) if found.state in (State.FAILED, State.KILLED) or why else "",
        "created": seconds(found.created_at),
        "age": (timezone.now() - found.created_at).total_seconds(),
        "since": seconds(found.waiting_since),
        "waiting": _waiting(found),
        "standing": fairness.latest(person=found.owner.get_username()).last(),
    }
    return show(request, "container.html", context)


def _app_url(found: Container, rights: Rights) -> str:
    """Where this person opens its application; empty: by `gpushare open` alone, or not at all."""
    port = port_of(found)
    if not (settings.GPUSHARE_APPS and port) or found.finished_at or not may_open(rights, found, port):
        return ""
    return f"{entering.address(found, port)}/{found.app.partition('/')[2]}"


def _guests(found: Container, steers: bool) -> dict[str, Any]:
    shares = steers and bool(port_of(found)) and not found.finished_at
    return {"container": found, "shares": shares, "guests": guests.names(found) if shares else []}


@post_view
def share(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The people who may open its application, with one `added` or `removed`."""
    found = container_or_404(pk)
    added, removed = (request.POST.get(name, "").strip() for name in ("added", "removed"))
    context: dict[str, Any] = {}
    try:
        wanted = ({*guests.names(found), added} - {removed}) - {""}
        guests.invite(person(request), found, {"guests": sorted(wanted)})
    except Problem as problem:
        context = {"problem": problem, "typed": added}
    may = rights_of(person(request)).steers(found)
    return render(request, "parts/guests.html", _guests(found, may) | context)


def _waiting(found: Container) -> str:
    """What is shown beneath the name; the live line goes on with it (showWaiting in container.js)."""
    text = catalogue()
    if since := found.waiting_since:
        place = "?" if found.queue_position is None else found.queue_position
        time = duration((timezone.now() - since).total_seconds())
        return text["waiting"].format(place=place, time=time, reason=found.queue_reason)
    return text["swapped"].format(size=format_size(found.swapped)) if found.swapped else ""


@page_view
def console(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The terminal that it was launched with."""
    found = container_or_404(pk)
    return _terminal(request, found, "Console", kind="console", keyboard=found.interactive)


@page_view
def shell(request: HttpRequest, pk: UUID) -> HttpResponse:
    """A shell beside its program."""
    return _terminal(request, container_or_404(pk), "Shell", kind="shell", keyboard=True)


def _terminal(request: HttpRequest, found: Container, heading: str, *, kind: str, keyboard: bool) -> HttpResponse:
    """Who may use it is asked when it connects, as it is for every client."""
    way = "console" if kind == "console" else "exec"
    context = {
        "container": found,
        "state_label": STATES[found.state],
        "heading": heading,
        "kind": kind,
        "keyboard": keyboard,
        "socket": f"{reverse('dashboard')}ws/containers/{found.pk}/{way}/",
    }
    return show(request, "console.html", context)


@page_view
def held(request: HttpRequest, pk: UUID) -> JsonResponse:
    """VRAM over its life, for the chart."""
    return JsonResponse(samples.container(container_or_404(pk)))


@page_view
def events(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Older events, as rows to add to the table."""
    before = request.GET.get("before", "")
    found = _events(container_or_404(pk), int(before) if before.isdecimal() and len(before) < 19 else None)
    return render(request, "parts/events.html", {"container": {"pk": pk}, "events": found})


@page_view
def log(request: HttpRequest, pk: UUID) -> HttpResponse | StreamingHttpResponse:
    """Its output: all of it to ?download, the last lines alone (?last), or those and then what comes."""
    found = container_or_404(pk)
    download, last = "download" in request.GET, "last" in request.GET
    tail = None if download else LAST_LINES if last else 1000
    try:
        response = reading.answer(request, found, follow=not download and not last, tail=tail)
    except Problem as problem:
        return HttpResponse(f"{problem.message}\n", status=problem.status, content_type="text/plain; charset=utf-8")
    response.headers["Cache-Control"] = "no-store"
    if download:
        response.headers["Content-Disposition"] = f'attachment; filename="{found.name}.log"'
    return response


def _other_cards(container: Container, claims: Sequence[Claim]) -> list[Gpu]:
    """Where what it has could go."""
    its = [claim.gpu_id for claim in claims]
    others = Gpu.objects.filter(node=container.node_id, present=True, drained_at=None) if its else Gpu.objects.none()
    return list(others.exclude(pk__in=its))


def _rates(found: Container) -> dict[str, float]:
    before = found.events.filter(kind=AllocationEvent.Kind.SWAPPED_OUT).exists()
    return (found.node or Node()).rates(first=not before)


def _stretches(found: Container) -> list[dict[str, Any]]:
    return [
        {"state": part.state, "label": STATES[part.state], "start": seconds(part.start), "seconds": part.seconds}
        for part in stretches(found)
    ]


def _events(found: Container, before: int | None = None) -> dict[str, Any]:
    rows = AllocationEvent.objects.filter(container=found).select_related("gpu").order_by("-id")
    if before is not None:
        rows = rows.filter(id__lt=before)
    shown = list(rows[: EVENTS_PER_PAGE + 1])
    more = len(shown) > EVENTS_PER_PAGE
    shown = shown[:EVENTS_PER_PAGE]
    return {
        "rows": [
            {"event": event, "label": EVENTS.get(event.kind, event.get_kind_display()), "at": seconds(event.at)}
            for event in shown
        ],
        "more": shown[-1].pk if more else None,
    }


def _settings(found: Container, steers: bool) -> dict[str, str]:
    """What was asked for, in the words of the REST API."""
    texts = {name: text_of(name, value) for name, value in asked_for(found, steers).items()}
    return {name: text for name, text in texts.items() if text}
