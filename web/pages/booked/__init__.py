"""The calendar: what is announced."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from web.errors import Problem, invalid
from web.models import Announcement, Gpu, Node
from web.pages.frame import person, show
from web.people.roles import Deed, rights_of
from web.services.booked import announcements
from web.spec.booked import zone_of


@login_required
@require_http_methods(["GET", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """POST makes or withdraws something (`do`)."""
    problem = None
    if request.method == "POST":
        try:
            messages.success(request, _do(request, request.POST))
            return redirect("calendar")
        except Problem as refused:
            problem = refused
    context = {
        "problem": problem,
        "typed": request.POST if problem else {},
        "announced": Announcement.objects.current(timezone.now()),
        "may_announce": rights_of(person(request)).may(Deed.ANNOUNCE),
        "then": [("stay", "go on"), ("move", "move to host memory"), ("end", "end after a minute")],
        "nodes": Node.objects.listed().order_by("name").only("name"),
        "gpus": Gpu.objects.filter(present=True).select_related("node").order_by("node__name", "index"),
    }
    return show(request, "calendar.html", context, status=problem.status if problem else 200)


def _do(request: HttpRequest, form: QueryDict) -> str:
    """What was done, as a sentence. Raises Problem, or Http404 for what no form asks."""
    user = person(request)
    match form.get("do"):
        case "announce":
            asked: dict[str, Any] = {name: form.get(name, "").strip() for name in ("message", "then")}
            kind, _, about = form.get("about", "").partition(":")
            asked |= {kind: about} if kind in ("node", "gpu") else {}
            return f"Announced: {announcements.announce(user, asked | _times(form)).said}"
        case "withdraw":
            announcements.withdraw(user, _number(form, "id"))
            return "The notice is withdrawn."
    raise Http404


def _times(form: QueryDict) -> dict[str, str | None]:
    """Local times of the form, in the zone that it names."""
    zone = zone_of(form.get("zone", "") or "UTC")
    return {name: _time(form.get(name, ""), zone, name) for name in ("begins_at", "ends_at")}


def _time(text: str, zone: ZoneInfo, field: str) -> str | None:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone).isoformat() if text.strip() else None
    except ValueError:
        raise invalid("This is not a time, such as 2026-12-04T08:00.", field) from None


def _number(form: QueryDict, name: str) -> int:
    try:
        return int(form.get(name, ""))
    except ValueError:
        raise Http404 from None
