"""The calendar: what is reserved and announced; all of it can be done in a table and forms, by keyboard."""

from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from web.errors import Problem, invalid
from web.models import Announcement, Gpu, Node, Reservation
from web.pages.booked import grid
from web.pages.frame import person, show
from web.people.roles import Deed, groups_besides_role, rights_of
from web.services.booked import announcements, reservations, subscribed
from web.spec.booked import zone_of
from web.spec.people import MOST_DAYS


@login_required
@require_http_methods(["GET", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """POST makes or ends something (`do`)."""
    problem, address = None, ""
    form = request.POST
    if request.method == "POST":
        try:
            if form.get("do") == "subscribe":
                path = reverse("calendar_feed", args=[subscribed.new_key(person(request))])
                address = request.build_absolute_uri(path)
            else:
                messages.success(request, _do(person(request), form))
                return redirect(f"{reverse('calendar')}?{urlencode({'zone': form.get('zone') or 'UTC'})}")
        except Problem as refused:
            problem = refused
    context = _context(request, form.get("zone") or request.GET.get("zone", ""))
    context |= {"problem": problem, "typed": form if problem else {}, "address": address}
    return show(request, "calendar.html", context, status=problem.status if problem else 200)


@require_GET
def feed(request: HttpRequest, key: str) -> HttpResponse:
    """Without signing in: who has the key may see this, and nothing else."""
    try:
        return HttpResponse(subscribed.calendar_of(key), "text/calendar; charset=utf-8")
    except Problem as problem:  # a program asks: no page
        return HttpResponse(problem.message, "text/plain; charset=utf-8", status=problem.status)


def _context(request: HttpRequest, asked: str) -> dict[str, Any]:
    user, now, zone = person(request), timezone.now(), _zone(asked)
    week = grid.Week(_first(request, now, zone), zone)
    found = list(Reservation.objects.open(now).whole())
    announced = list(Announcement.objects.current(now))
    gpus = list(Gpu.objects.filter(present=True, node__removed_at=None).select_related("node")
                .order_by("node__name", "index"))  # fmt: skip
    rights = rights_of(user)
    query = [(step, urlencode({"from": week.first + timedelta(days=7 * step), "zone": zone.key})) for step in (-1, 1)]
    return {
        "zone": zone.key,
        "zone_asked": bool(asked),
        "week": week,
        "earlier": query[0][1],
        "later": query[1][1],
        "now": week.place(now) if week.first <= now.astimezone(zone).date() < week.first + timedelta(days=7) else None,
        "rows": grid.rows(week, gpus, found, announced),
        "reserved": [_shown(user, each, now) for each in found],
        "announced": announced,
        "may_reserve": rights.may(Deed.LAUNCH),
        "may_announce": rights.may(Deed.ANNOUNCE),
        "manages": rights.may(Deed.MANAGE),
        "repeats": Reservation.Repeat.values,
        "whose": [("", "me"), *[(f"group:{group}", f"group {group}") for group in groups_besides_role(user)]],
        "if_short": [("short", "begin with less"), ("end", "end them, after a minute")],
        "then": [("stay", "keep running"), ("move", "move to host memory"), ("end", "end after a minute")],
        "about": [
            ("", "all nodes"),
            *[
                (f"node:{each.name}", f"node {each.name}")
                for each in Node.objects.listed().order_by("name").only("name")
            ],
            *[(f"gpu:{gpu.uuid}", f"GPU {gpu.index} of {gpu.node.name}") for gpu in gpus],
        ],
        "gpus": gpus,
    }


def _shown(user: User, reservation: Reservation, now: datetime) -> dict[str, Any]:
    span = reservation.next_span(now)
    assert span is not None, "it is open"
    begun = span[0] <= now
    short = [card for card in reservation.cards.all() if card.short]
    absent = begun and now - span[0] >= timedelta(minutes=15) and not reservations.containers_in(reservation)
    return {
        "made": reservation,
        "mark": reservation.pk % grid.COLOURS,
        "begins": span[0],
        "ends": span[1],
        "state": "lent to others: unused" if absent else "in force" if begun else "planned",
        "short": short,
        "may_end": reservations.may_end(user, reservation),
        "verb": "End" if begun else "Cancel",
    }


def _zone(asked: str) -> ZoneInfo:
    try:
        return zone_of(asked or "UTC")
    except Problem:
        return zone_of("UTC")


def _first(request: HttpRequest, now: datetime, zone: ZoneInfo) -> date:
    today = now.astimezone(zone).date()
    try:
        asked = date.fromisoformat(request.GET.get("from", ""))
    except ValueError:
        return today
    return asked if abs((asked - today).days) <= 2 * MOST_DAYS else today


def _do(user: User, form: QueryDict) -> str:
    """What was done, as a sentence. Raises Problem, or Http404 for what no form asks."""
    match form.get("do"):
        case "announce":
            asked: dict[str, Any] = {name: form.get(name, "").strip() for name in ("message", "then")}
            kind, _, about = form.get("about", "").partition(":")
            asked |= {kind: about} if kind in ("node", "gpu") else {}
            return f"Announced: {announcements.announce(user, asked | _times(form)).said}"
        case "withdraw":
            announcements.withdraw(user, _number(form, "id"))
            return "The notice is withdrawn."
        case "reserve":
            made = reservations.reserve(user, _reservation(form))
            return f"Reserved for {made.holder}: number {made.pk}."
        case "end":
            reservations.end(user, _number(form, "id"))
            return "The reservation is over."
    raise Http404


def _reservation(form: QueryDict) -> dict[str, Any]:
    asked: dict[str, Any] = {name: form.get(name, "").strip() for name in ("note", "starts", "zone", "if_short")}
    size, repeat, whose = form.get("gpu_memory", "").strip(), form.get("repeat", ""), form.get("whose", "")
    asked["gpu_memory"] = size or None
    asked["gpus"] = form.getlist("gpus") or _whole(form, "count")
    asked["minutes"] = round(60 * _float(form, "hours"))
    asked["repeat"] = repeat or "once"
    asked["times"] = _whole(form, "times") if repeat in ("daily", "weekly") else 1
    if whose.startswith("group:"):
        asked["group"] = whose.removeprefix("group:")
    elif form.get("user", "").strip():
        asked["user"] = form.get("user", "").strip()
    return asked


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
    """Of a hidden field."""
    try:
        return int(form.get(name, ""))
    except ValueError:
        raise Http404 from None


def _whole(form: QueryDict, name: str) -> int:
    try:
        return int(form.get(name, "").strip() or 1)
    except ValueError:
        raise invalid("This has to be a whole number.", name) from None


def _float(form: QueryDict, name: str) -> float:
    try:
        found = float(form.get(name, "").strip() or 1)
    except ValueError:
        found = -1.0
    if not 0 < found <= 24 * MOST_DAYS:
        raise invalid("This has to be a number of hours: 1.5.", name)
    return found
